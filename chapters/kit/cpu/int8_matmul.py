"""An int8 matrix product with a bias for `vpdpbusd`: the program, its packed weights, and three schedules of it.

"separate" adds the bias in a second pass, "at the tile" moves that pass into the tile loop (`reverse_compute_at`),
"fused" starts the sums from the bias. Everything else is the same in all three.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
from tvm import s_tir, tirx

from chapters.kit.cpu.vnni import register
from chapters.kit.ir.product_and_bias import product_and_bias

WAYS = ("separate", "at the tile", "fused")
ROWS, LANES, VECTORS, FOUR = 8, 16, 2, 4  # a tile of 8 x 32 sums stays in 16 vector registers


def program(m: int, n: int, k: int) -> tirx.PrimFunc:
    """D = A @ B + C: A (m, k) uint8, B packed by `pack`, C (n,) and D (m, n) int32; blocks `matmul` and `bias`."""
    packed = (n // LANES, k // FOUR, LANES, FOUR), "int8"
    return product_and_bias(
        ((m, k), "uint8"),
        packed,
        ((n,), "int32"),
        lambda b, j, p: b[j // LANES, p // FOUR, j % LANES, p % FOUR],
    )


def pack(w: np.ndarray) -> np.ndarray:
    """int8 weights (n, k) as `program` takes them, (n // 16, k // 4, 16, 4): 16 outputs by 4 steps lie together."""
    n, k = w.shape
    tiles = w.reshape(n // LANES, LANES, k // FOUR, FOUR)
    return np.ascontiguousarray(tiles.transpose(0, 2, 1, 3))


def schedule(m: int, n: int, k: int, way: str, primitives: ModuleType) -> s_tir.Schedule:
    """The program tiled and tensorized in one of WAYS; m, n, k are multiples of 8, 32, 4.

    primitives: chapter 6's module, for `fuse_reduction_epilogue` and `refresh_regions`. Raises ValueError for another
    way.
    """
    if way not in WAYS:
        raise ValueError(f"way is {way!r}; it must be one of {', '.join(map(repr, WAYS))}.")
    sch = s_tir.Schedule(program(m, n, k))
    matmul, bias = sch.get_sblock("matmul"), sch.get_sblock("bias")
    if way == "fused":
        primitives.fuse_reduction_epilogue(sch, matmul, bias)
    i, j, p = sch.get_loops(matmul)
    (row_tile, row), (step, four) = sch.split(i, [None, ROWS]), sch.split(p, [None, FOUR])
    column_tile, vector, lane = sch.split(j, [None, VECTORS, LANES])
    sch.reorder(column_tile, row_tile, step, row, vector, lane, four)
    if way == "at the tile":
        sch.reverse_compute_at(bias, row_tile)
    if way != "fused":
        sch.vectorize(sch.split(sch.get_loops(bias)[-1], [None, LANES])[1])
    sch.unroll(row)
    sch.unroll(vector)
    init = sch.decompose_reduction(matmul, step)
    sch.vectorize(sch.get_loops(init)[-1])
    for block in (init, matmul):
        primitives.refresh_regions(sch, block)
    sch.tensorize(lane, register())
    return sch
