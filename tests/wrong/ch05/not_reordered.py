"""Splits, and leaves the loops where they are."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.1"
WHAT = "loops split and not reordered"
WHY = (
    "split leaves its two loops side by side, and a split alone changes nothing about the order in which "
    "elements are computed."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Loops around a block”"


def tile(sch: Schedule, rows: int, columns: int) -> list[LoopRV]:
    i, j, step = sch.get_loops("matmul")
    row_tile, row = sch.split(i, [None, rows])
    column_tile, column = sch.split(j, [None, columns])
    return [row_tile, row, column_tile, column, step]
