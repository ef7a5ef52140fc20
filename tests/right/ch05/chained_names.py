"""Takes every handle anew by the block's name, and gives the split both factors."""

from solutions.ch05_schedules_and_their_limits.schedules import *


def tile(sch: Schedule, rows: int, columns: int) -> list[LoopRV]:
    i, j, _step = sch.get_loops("matmul")
    m, n = (int(sch.get(loop).extent) for loop in (i, j))
    sch.split(j, [-(-n // columns), columns])
    sch.split(i, [-(-m // rows), rows])
    row_tile, row, column_tile, column, step = sch.get_loops("matmul")
    sch.reorder(column_tile, step, row)
    sch.reorder(row, column)
    return [row_tile, column_tile, step, row, column]


def use_the_machine(sch: Schedule) -> LoopRV:
    sch.vectorize(sch.get_loops("matmul")[4])
    sch.unroll(sch.get_loops("matmul")[3])
    sch.fuse(*sch.get_loops("matmul")[:2])
    sch.parallel(sch.get_loops("matmul")[0])
    return sch.get_loops("matmul")[0]
