"""Another correct design for exercises 5.1 and 5.3.

**5.3, from the consumer's side.** The reference tiles the product and moves the bias under it. You can also tile the
*bias* and move the product under the bias, with `compute_at`. TVM then works out which sums a tile of the bias needs,
and makes loops for them. If the consumer decides the tile, as when a pooling reads a convolution, this is the only way.
The price: the loops of the product are new, so you have to fetch and schedule them again.

**5.1, splits from a list.** Loops are data, so one comprehension does both splits. This pays off when the number of
dimensions is not known in advance.
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


def bias_at_the_tile(sch: Schedule) -> None:
    row, column = (int(sch.get(loop).extent) for loop in sch.get_loops("matmul")[-2:])
    i, j = sch.get_loops("bias")
    row_tile, row_inner = sch.split(i, [None, row])
    column_tile, column_inner = sch.split(j, [None, column])
    sch.reorder(row_tile, column_tile, row_inner, column_inner)
    tiles = sch.fuse(row_tile, column_tile)
    sch.compute_at("matmul", tiles)
    sch.parallel(tiles)
    _tiles, inner_row, inner_column, step = sch.get_loops("matmul")
    sch.reorder(step, inner_row, inner_column)
    sch.unroll(inner_row)
    sch.vectorize(inner_column)


def scheduled(func: tirx.PrimFunc, rows: int, columns: int) -> Schedule:
    sch = Schedule(func)
    tile(sch, rows, columns)
    use_the_machine(sch)
    bias_at_the_tile(sch)
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[1])
    return sch
