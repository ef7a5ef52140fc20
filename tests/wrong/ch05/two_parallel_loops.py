"""Makes both loops over tiles parallel and fuses nothing."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.2"
WHAT = "two parallel loops, one in the other"
WHY = (
    "The outer one hands its iterations to the threads, and few rows leave most of them without any. Fused, there is "
    "one loop with all tiles to share out."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Loops around a block”"


def use_the_machine(sch: Schedule) -> LoopRV:
    row_tile, column_tile, _step, row, column = sch.get_loops("matmul")
    sch.parallel(row_tile)
    sch.parallel(column_tile)
    sch.unroll(row)
    sch.vectorize(column)
    return row_tile
