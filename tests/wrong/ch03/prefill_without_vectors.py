"""3.9: tiles without vectors."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.9"
WHAT = "the rows of a tile are not vectorised"
WHY = (
    "x was packed so that a register takes one column of a tile's rows. Without vectorize the packing is "
    "done and not used."
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
    row_tile, vector, lane = sch.split(row, [None, tile.vectors, tile.lanes])
    block_n, columns, column = sch.split(j, [None, tile.block_n // tile.columns, tile.columns])
    block_k, steps, step = sch.split(k, [None, *split_steps(tile)])
    sch.reorder(block_n, *around, block_k, row_tile, columns, steps, step, column, vector, lane)
    sch.reverse_compute_at(result, block_n)
    for loop in (vector, column, step):
        sch.unroll(loop)
    sch.parallel(block_n)
    sch.decompose_reduction(product, block_k)
    vectorize_copies(sch, packed, result, tile)
    return sch.mod["main"]
