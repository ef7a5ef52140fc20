"""5.2: no return."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.2"
WHAT = "the loop over tiles is made and not returned"
WHY = "A function that ends without `return` gives None, and the caller has no handle of the loop."
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Loops around a block”"


def use_the_machine(sch):
    row_tile, column_tile, _step, row, column = sch.get_loops("matmul")
    sch.parallel(sch.fuse(row_tile, column_tile))
    sch.unroll(row)
    sch.vectorize(column)
