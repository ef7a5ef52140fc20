"""Takes the init out first, and asks for vectors afterwards."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.4"
WHAT = "decompose_reduction before the primitives that need a reduction block"
WHY = (
    "Once the init is a block of its own, the update adds to what another block has written: it is no reduction any "
    "more, and TVM does not know what vectorizing or parallel tiles would do to it."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “The init, taken apart”"


def scheduled(func: tirx.PrimFunc, rows: int, columns: int) -> Schedule:
    # BEGIN exercise 5.4 (about 7 lines): the order of the primitives matters
    sch = Schedule(func)
    i, j, step = sch.get_loops("matmul")
    row_tile, row = sch.split(i, [None, rows])
    column_tile, column = sch.split(j, [None, columns])
    sch.reorder(row_tile, column_tile, step, row, column)
    tiles = sch.fuse(row_tile, column_tile)
    sch.decompose_reduction("matmul", step)
    sch.parallel(tiles)
    sch.unroll(row)
    sch.vectorize(column)
    sch.reverse_compute_at("bias", tiles)
    return sch
    # END exercise 5.4
