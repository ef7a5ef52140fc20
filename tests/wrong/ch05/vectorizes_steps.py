"""Vectorizes the loop over steps."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.2"
WHAT = "the loop over steps vectorized"
WHY = (
    "Two steps of one sum would add to one element in the same moment. What a loop over steps becomes is "
    "serial; lanes are for the columns, whose sums are apart."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “What a loop may become”"


def use_the_machine(sch: Schedule) -> LoopRV:
    row_tile, column_tile, step, row, _column = sch.get_loops("matmul")
    tiles = sch.fuse(row_tile, column_tile)
    sch.parallel(tiles)
    sch.vectorize(step)
    sch.unroll(row)
    return tiles
