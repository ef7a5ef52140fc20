"""A linear layer of few rows: a warp computes four columns of some rows, and loads each weight once for all of them.

With few rows the time goes into loading the weight, and tensor cores would multiply tiles that are mostly padding.
The lanes of a warp share each sum. Lane l takes pieces l, l + 32, l + 64, ... of 16 bytes of k; then the lanes add up
their sums by shuffles. The start of a sum, such as a bias, is added once, to the complete sum. Started in each lane, it
would be added 32 times.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script import tirx as T

from chapters.kit.gpu.layer_with_epilogue import LinearLayer
from chapters.kit.gpu.limits import WARP
from chapters.kit.ir.parse_alone import parse_alone

PIECE = 8  # elements of 2 bytes in 16 bytes
WARPS, COLUMNS = 4, 4  # warps of a block, columns of a warp
BUCKETS = (2, 4, 8)  # rows of a block; with 8, each of a warp's 32 lanes finishes one result
ALL = T.uint32(2**32 - 1)  # lanes take part in a shuffle


def _load(operand, index, piece, register, to):
    """Load a piece of the row of an operand that has the index `index`."""
    with T.vectorized(PIECE) as v:
        T.buffer_store(register, operand[(*index, piece * PIECE + v)], [*to, v])


@T.inline
def _add_products(layer, A, sums, a, b, first_row, first_column, lane):
    """Add a lane's products; beyond the last column, those of the last one, which are not stored."""
    pieces = T.meta_var(layer.k // PIECE)
    for step in T.serial((pieces + WARP - 1) // WARP):
        if step * WARP + lane < pieces:
            for c in T.unroll(COLUMNS):
                column = T.meta_var(T.min(first_column + c, layer.n - 1))
                _load(layer.w, [column], step * WARP + lane, b, [c])
            for r in T.unroll(sums.shape[0]):
                if first_row + r < layer.rows:
                    _load(A, [first_row + r], step * WARP + lane, a, [])
                    for c, v in T.grid(COLUMNS, PIECE):
                        sums[r, c] += T.cast(a[v], "float32") * T.cast(b[c, v], "float32")


@T.inline
def _add_lanes(sums, lane_sum, lane):
    """Add up the lanes' sums; lane l keeps the one of row l // COLUMNS and column l % COLUMNS."""
    for r in T.unroll(sums.shape[0]):
        for c in T.unroll(COLUMNS):
            for step in T.unroll(5):
                other = T.meta_var(T.shift_right(T.int32(WARP // 2), step))
                sums[r, c] += T.tvm_warp_shuffle_xor(ALL, sums[r, c], other, WARP, WARP)
            if lane == r * COLUMNS + c:
                lane_sum[0] = sums[r, c]


def _store(layer, D, total, row, column):
    """Add the start to a complete sum, finish and store it."""
    if layer.start is not None:
        total = total + layer.first_total(column)
    value = layer.finish(total, row, column)
    T.buffer_store(D, value, [row, column])


@parse_alone
def few_rows_body(layer: LinearLayer, bucket: int) -> tirx.Stmt:
    """The body of a kernel that computes `layer`, `bucket` rows per block of threads; it is right for any rows.

    Raises ValueError if k is no multiple of 8, because rows are loaded in pieces of 16 bytes, or if an array has a
    known size whose indices do not fit 32 bits.
    """
    m, n, k = layer.rows, layer.n, layer.k
    if k % PIECE or k == 0:
        raise ValueError(
            f"k is {k}, and a lane loads {PIECE} elements at a time: use another kernel, or pad x and the weight."
        )
    layer.check_indices()

    @T.prim_func(check_well_formed=False)
    def main():
        block = T.launch_thread("blockIdx.x", math.ceil(n / (WARPS * COLUMNS)))
        rows_before = T.launch_thread("blockIdx.y", (m + bucket - 1) // bucket)
        thread = T.launch_thread("threadIdx.x", WARPS * WARP)
        A = layer.matrix(layer.x)
        D = layer.matrix(layer.out)
        a = T.alloc_buffer((PIECE,), layer.dtype, scope="local")
        b = T.alloc_buffer((COLUMNS, PIECE), layer.dtype, scope="local")
        sums = T.alloc_buffer((bucket, COLUMNS), "float32", scope="local")
        lane_sum = T.alloc_buffer((1,), "float32", scope="local")
        lane: T.let = thread % WARP
        first_row: T.let = rows_before * bucket
        first_column: T.let = (block * WARPS + thread // WARP) * COLUMNS
        for r in T.unroll(bucket):
            for c in T.unroll(COLUMNS):
                sums[r, c] = T.float32(0)
        _add_products(layer, A, sums, a, b, first_row, first_column, lane)
        row: T.let = first_row + lane // COLUMNS
        column: T.let = first_column + lane % COLUMNS
        _add_lanes(sums, lane_sum, lane)
        if (lane < bucket * COLUMNS) & (row < m) & (column < n):
            _store(layer, D, lane_sum[0], row, column)

    return main.body
