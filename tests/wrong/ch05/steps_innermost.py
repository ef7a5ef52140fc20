"""Leaves the loop over steps innermost."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.1"
WHAT = "the loop over steps inside the tile"
WHY = (
    "One element of the tile is finished before the next begins, so nothing of A and B is used again "
    "while it is in a register, and there is no loop over columns to vectorize inside."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Loops around a block”"


def tile(sch: Schedule, rows: int, columns: int) -> list[LoopRV]:
    i, j, step = sch.get_loops("matmul")
    row_tile, row = sch.split(i, [None, rows])
    column_tile, column = sch.split(j, [None, columns])
    sch.reorder(row_tile, column_tile, row, column, step)
    return [row_tile, column_tile, row, column, step]
