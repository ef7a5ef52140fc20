"""Another correct design for exercises 5.1 and 5.2.

**5.1, splits from a list.** Loops are data, so one comprehension does both splits. This pays off when the number of
dimensions is not known in advance.

**5.2, from the consumer's side.** The reference tiles the product and moves the bias under it. You can also tile the
*bias* and move the product under the bias, with `compute_at`. TVM then works out which sums a tile of the bias needs,
and makes loops for them. If the consumer decides the tile, as when a pooling reads a convolution, this is the only way.
The price: the loops of the product are new, so you have to fetch and schedule them again.
"""

from solutions.ch05_schedules_and_their_limits.schedules import *


def tile(sch: Schedule, rows: int, columns: int) -> list[LoopRV]:
    *spatial, step = sch.get_loops("matmul")
    sizes = zip(spatial, (rows, columns), strict=True)
    pairs = [sch.split(loop, [None, size]) for loop, size in sizes]
    (row_tile, row), (column_tile, column) = pairs
    order = [row_tile, column_tile, step, row, column]
    sch.reorder(*order)
    return order


def scheduled(func: tirx.PrimFunc, rows: int, columns: int) -> Schedule:
    sch = Schedule(func)
    i, j = sch.get_loops("bias")
    row_tile, row = sch.split(i, [None, rows])
    column_tile, column = sch.split(j, [None, columns])
    sch.reorder(row_tile, column_tile, row, column)
    tiles = sch.fuse(row_tile, column_tile)
    sch.compute_at("matmul", tiles)
    sch.parallel(tiles)
    _tiles, row, column, step = sch.get_loops("matmul")
    sch.reorder(step, row, column)
    sch.unroll(row)
    sch.vectorize(column)
    sch.decompose_reduction("matmul", step)
    return sch
