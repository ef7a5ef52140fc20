"""Rounds the number of tiles down."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.1"
WHAT = "the number of tiles rounded down"
WHY = (
    "Factors must cover the loop: 5 rows in tiles of 4 need two tiles, and split adds the predicate. With None it "
    "works that number out."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Loops around a block”"


def tile(sch: Schedule, rows: int, columns: int) -> list[LoopRV]:
    i, j, step = sch.get_loops("matmul")
    row_tile, row = sch.split(i, [sch.get(i).extent // rows, rows])
    column_tile, column = sch.split(j, [sch.get(j).extent // columns, columns])
    sch.reorder(row_tile, column_tile, step, row, column)
    return [row_tile, column_tile, step, row, column]
