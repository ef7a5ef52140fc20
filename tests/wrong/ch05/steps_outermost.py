"""Puts the loop over steps outside the tiles."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.1"
WHAT = "the loop over steps outside the tiles"
WHY = (
    "Then every step visits the whole result, and a tile's sums leave the cache between one step and the "
    "next."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Loops around a block”"


def tile(sch: Schedule, rows: int, columns: int) -> list[LoopRV]:
    i, j, step = sch.get_loops("matmul")
    row_tile, row = sch.split(i, [None, rows])
    column_tile, column = sch.split(j, [None, columns])
    sch.reorder(step, row_tile, column_tile, row, column)
    return [step, row_tile, column_tile, row, column]
