"""Moves the product into the loops of the bias."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.3"
WHAT = "the whole product computed again for each row of the bias"
WHY = (
    "compute_at moves the producer to its consumer. At a loop over rows, it computes one row there, and "
    "the tiles are gone."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Where a block runs”"


def bias_at_the_tile(sch: Schedule) -> None:
    i, _j = sch.get_loops("bias")
    sch.compute_at("matmul", i)
