"""Moves the bias into the loop over steps."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.3"
WHAT = "the bias inside the loop over steps"
WHY = (
    "It then runs after each step, on sums that are not complete, and only its last run counts. TVM "
    "allows it, for the result is right: k times the work."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Where a block runs”"


def bias_at_the_tile(sch: Schedule) -> None:
    _tiles, step, _row, _column = sch.get_loops("matmul")
    sch.reverse_compute_at("bias", step)
