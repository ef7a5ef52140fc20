"""Moves the bias with the primitive for producers."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.3"
WHAT = "the bias moved by compute_at"
WHY = (
    "compute_at takes a producer to its consumer, and the bias has none: it writes the output. What it reads "
    "is made by `matmul`, so it is a consumer, which goes the other way."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Where a block runs”"


def bias_at_the_tile(sch: Schedule) -> None:
    sch.compute_at("bias", sch.get_loops("matmul")[0])
