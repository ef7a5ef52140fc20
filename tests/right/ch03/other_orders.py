"""A cube, reversed, deceives too; decode takes eight outputs at a time, and prefill keeps k in one piece."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *


def deceives_careless():
    """A full reversal of a cube: axes=None on three dimensions."""
    x = relax.Var("x", relax.TensorType((3, 3), "float32"))
    w = relax.Var("w", relax.TensorType((3, 3, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, builder.emit(relax.op.permute_dims(w))))
        builder.emit_func_output(out)
    random = np.random.default_rng(9)
    return builder.get(), [random.uniform(1, 2, s).astype("float32") for s in ((3, 3), (3, 3, 3))]


def schedule_decode(func, target):
    """Eight outputs side by side, the sums of the lanes written out."""
    n, k = weight_shape(func)
    lanes = largest_divisor(k, lanes_of(func, target))
    sch = Schedule(func)
    product = sch.get_sblock("NT_matmul")
    *rows, j, k_loop = sch.get_loops(product)
    _, lane = sch.split(k_loop, [None, lanes])
    partial = sch.rfactor(lane, factor_axis=len(rows) + 1)
    *rows, j, lane = sch.get_loops(product)
    group, member = sch.split(j, [None, largest_divisor(n, 8)])
    sch.reorder(group, *rows, member, lane)
    sch.compute_at(partial, group, preserve_unit_loops=True)
    _, partial_lane, *rows, partial_member, chunk = sch.get_loops(partial)
    sch.reorder(chunk, partial_member, *rows, partial_lane)
    sch.vectorize(partial_lane)
    sch.unroll(lane)
    sch.parallel(group)
    sch.decompose_reduction(partial, chunk)
    return sch.mod["main"]


def schedule_prefill(func, target):
    """A block of w is used for a tile of rows before the next tile; nothing is written out by hand."""
    tile = matmul_tile(func, target)
    sch = Schedule(func)
    product = sch.get_sblock("NT_matmul")
    packed, result = pad_rows(sch, product, tile)
    pack_rows(sch, product, tile)
    *around, j, k = sch.get_loops(product)
    row = around.pop(tile.row_axis)
    row_tile, vector, lane = sch.split(row, [None, tile.vectors, tile.lanes])
    block_n, columns, column = sch.split(j, [None, tile.block_n // tile.columns, tile.columns])
    sch.reorder(block_n, *around, row_tile, columns, k, column, vector, lane)
    sch.reverse_compute_at(result, block_n)
    sch.vectorize(lane)
    sch.unroll(vector)
    sch.unroll(column)
    sch.parallel(block_n)
    sch.decompose_reduction(product, k)
    vectorize_copies(sch, packed, result, tile)
    return sch.mod["main"]
