"""Does not unroll the rows."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.2"
WHAT = "rows of a tile left in a loop"
WHY = "Only when the rows stand one after another in the code can each have registers of its own."
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “What a loop may become”"


def use_the_machine(sch: Schedule) -> LoopRV:
    row_tile, column_tile, _step, _row, column = sch.get_loops("matmul")
    tiles = sch.fuse(row_tile, column_tile)
    sch.parallel(tiles)
    sch.vectorize(column)
    return tiles
