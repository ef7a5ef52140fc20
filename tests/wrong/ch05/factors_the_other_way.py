"""Gives `split` the number of tiles instead of their size."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.1"
WHAT = "the number of tiles given as the size of a tile"
WHY = (
    "split takes factors from outside in, and None is the one it works out. `[None, 4]` makes inner loops "
    "of 4, `[4, None]` makes 4 tiles."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Loops around a block”"


def tile(sch: Schedule, rows: int, columns: int) -> list[LoopRV]:
    i, j, step = sch.get_loops("matmul")
    row_tile, row = sch.split(i, [rows, None])
    column_tile, column = sch.split(j, [columns, None])
    sch.reorder(row_tile, column_tile, step, row, column)
    return [row_tile, column_tile, step, row, column]
