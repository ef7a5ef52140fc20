"""Exchanges rows and columns of the tile."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.2"
WHAT = "rows vectorized and columns unrolled"
WHY = (
    "Columns of C and D lie side by side in memory, rows do not: a vector of rows has to be gathered "
    "element by element."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “What a loop may become”"


def use_the_machine(sch: Schedule) -> LoopRV:
    row_tile, column_tile, _step, row, column = sch.get_loops("matmul")
    tiles = sch.fuse(row_tile, column_tile)
    sch.parallel(tiles)
    sch.reorder(column, row)
    sch.unroll(column)
    sch.vectorize(row)
    return tiles
