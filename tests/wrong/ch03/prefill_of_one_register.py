"""3.9: a step along k adds to one register of sums."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.9"
WHAT = "columns and vectors stand outside the steps along k, so that a step adds to one register of sums"
WHY = (
    "Each step then waits until the one before has added to the same register, and every element of w is loaded for "
    "one multiply-add. A tile of columns and vectors inside the step has many sums that do not wait for one another."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Now make it fast”"


def schedule_prefill(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    tile = matmul_tile(func, target)
    sch = Schedule(func)
    product = sch.get_sblock("NT_matmul")
    packed, result = pad_rows(sch, product, tile)
    pack_rows(sch, product, tile)
    *around, j, k = sch.get_loops(product)
    row = around.pop(tile.row_axis)
    row_tile, lane = sch.split(row, [None, tile.lanes])
    block_n, columns = sch.split(j, [None, tile.block_n])
    sch.reorder(block_n, *around, row_tile, columns, k, lane)
    sch.reverse_compute_at(result, block_n)
    sch.vectorize(lane)
    sch.parallel(block_n)
    sch.decompose_reduction(product, k)
    vectorize_copies(sch, packed, result, tile)
    return sch.mod["main"]
