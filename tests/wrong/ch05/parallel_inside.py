"""Runs the rows of a tile in parallel."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.2"
WHAT = "the inner loop in parallel instead of the outer one"
WHY = (
    "Starting threads costs microseconds, and a row of a tile is done in less. Work is shared out in the "
    "largest pieces there are."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “What a loop may become”"


def use_the_machine(sch: Schedule) -> LoopRV:
    row_tile, column_tile, _step, row, column = sch.get_loops("matmul")
    tiles = sch.fuse(row_tile, column_tile)
    sch.parallel(row)
    sch.vectorize(column)
    return tiles
