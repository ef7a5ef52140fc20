"""Runs only the row tiles in parallel."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.2"
WHAT = "only the row tiles in parallel"
WHY = (
    "A product of few rows has few row tiles, and then most cores have nothing to do. One loop over all "
    "tiles has enough for each."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “What a loop may become”"


def use_the_machine(sch: Schedule) -> LoopRV:
    row_tile, _column_tile, _step, row, column = sch.get_loops("matmul")
    sch.parallel(row_tile)
    sch.unroll(row)
    sch.vectorize(column)
    return row_tile
