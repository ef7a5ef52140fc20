"""Kernels whose times others have published, written here from their descriptions, to see how far a model is off.

Each `Published` names the page, the GPU and the number. The kernels are ours: they have the published tiles, threads
and access patterns, and TVM writes their text. So instructions other than loads, stores and products differ a little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from chapters.kit.gpu.mma import TILES as MMA_TILES
from chapters.kit.gpu.mma import mma_matmul
from chapters.kit.gpu.wgmma import wgmma_matmul
from chapters.kit.gpu.wgmma_tile import TILES as WGMMA_TILES

SGEMM_PAGE = "github.com/siboehm/SGEMM_CUDA, README.md, and src/runner.cu for the tiles"
MMA_PAGE = "github.com/yencal/cuda-hgemm-mma, README.md, 03_MMAMultistage; its tile is tuned, ours is 128 × 128 × 32"
WGMMA_PAGE = "github.com/pranjalssh/fast.cu, README.md, kernel 7; it adds clusters, ours has none"
TRANSPOSE_PAGE = "yencal.github.io/gpu-matrix-transpose-optimization, Results"


@dataclass(frozen=True)
class Published:
    """A published time. make: our kernel. operations: of one launch. seconds: what the page says, or follows from it.

    wgmma: the arguments of `wgmma_traffic`, for a kernel with bulk copies. sizes: of symbolic dimensions.
    """

    name: str
    board: str
    make: Callable[[], tirx.PrimFunc]
    operations: float
    seconds: float
    source: str
    wgmma: tuple = ()
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Tile:
    """Of a product in float32: a block computes (rows, columns), a thread (own_rows, own_columns).

    depth: the steps of the sums that are staged in shared memory at a time; 0 for none. turned: A's tile is stored
    transposed. vector: elements per copy.
    """

    rows: int
    columns: int
    depth: int = 0
    own_rows: int = 1
    own_columns: int = 1
    vector: int = 1
    turned: bool = False

    @property
    def threads(self) -> tuple[int, int]:
        return self.rows // self.own_rows, self.columns // self.own_columns


def sgemm(n: int, tile: Tile, down_columns: bool = False) -> tirx.PrimFunc:
    """C = A @ B in float32, all (n, n). down_columns: neighbouring threads have neighbouring rows, not columns."""
    sch = Schedule(_product(n))
    block = sch.get_sblock("product")
    stored = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    i_block, i_thread, i_own = sch.split(i, [None, tile.threads[0], tile.own_rows])
    j_block, j_thread, j_own = sch.split(j, [None, tile.threads[1], tile.own_columns])
    k0, k1 = sch.split(k, [None, tile.depth or n])
    sch.reorder(i_block, j_block, i_thread, j_thread, k0, k1, i_own, j_own)
    x, y = (
        ((i_block, i_thread), (j_block, j_thread))
        if down_columns
        else ((j_block, j_thread), (i_block, i_thread))
    )
    for (outer, inner), axis in ((y, "y"), (x, "x")):
        sch.bind(outer, f"blockIdx.{axis}")
        sch.bind(inner, f"threadIdx.{axis}")
    sch.unroll(i_own)
    sch.unroll(j_own)
    sch.reverse_compute_at(stored, j_thread, preserve_unit_loops=True)
    for position in (0, 1) if tile.depth else ():
        copy = sch.cache_read(block, position, "shared")
        sch.compute_at(copy, k0)
        if tile.turned and position == 0:
            sch.transform_layout(copy, ("write", 0), lambda row, step: (step, row))
        _share_out(sch, copy, tile.threads, tile.vector)
    sch.decompose_reduction(block, k0)
    return sch.mod["main"]


def _product(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((n, n), "float32"),
        B: T.Buffer((n, n), "float32"),
        C: T.Buffer((n, n), "float32"),
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for i, j, k in T.grid(n, n, n):
            with T.sblock("product"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    return main


def _share_out(sch: Schedule, copy, threads: tuple[int, int], vector: int) -> None:
    """Let all threads of the block make a copy, `vector` elements at a time."""
    elements = sch.fuse(*sch.get_loops(copy)[-2:])
    _, y, x, lane = sch.split(elements, [None, *threads, vector])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.vectorize(lane)


def transpose(n: int, rows: int = 32, staged: bool = True, padding: int = 0) -> tirx.PrimFunc:
    """B = A.T in float32, both (n, n), in tiles of 32 × 32 by blocks of `rows` × 32 threads.

    staged: through shared memory, whose rows lie 32 + padding elements apart. Otherwise neighbouring threads read
    neighbours and write elements that are n apart.
    """
    sch = Schedule(_transposed(n))
    block = sch.get_sblock("turn")
    i, j = sch.get_loops(block)  # of B
    i_block, i_own = sch.split(i, [None, 32])
    j_block, j_own = sch.split(j, [None, 32])
    sch.reorder(i_block, j_block, i_own, j_own)
    sch.bind(j_block, "blockIdx.y")  # a row of tiles of A after the other, as published
    sch.bind(i_block, "blockIdx.x")
    if not staged:
        sch.bind(i_own, "threadIdx.x")
        sch.bind(j_own, "threadIdx.y")
        return sch.mod["main"]
    copy = sch.cache_read(block, 0, "shared")
    sch.compute_at(copy, j_block)
    a_row, a_column = sch.get_loops(copy)[-2:]
    for row, column in ((i_own, j_own), (a_row, a_column)):
        again, thread = sch.split(row, [None, rows])
        sch.unroll(again)
        sch.bind(thread, "threadIdx.y")
        sch.bind(column, "threadIdx.x")
    if padding:
        sch.storage_align(copy, 0, axis=-2, factor=32, offset=padding)
    return sch.mod["main"]


def _transposed(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((n, n), "float32"), B: T.Buffer((n, n), "float32")):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        for i, j in T.grid(n, n):
            with T.sblock("turn"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vj, vi]

    return main


def _sgemm(name: str, gflops: float, tile: Tile, **how) -> Published:
    operations = 2 * 4096**3
    make = partial(sgemm, 4096, tile, **how)
    return Published(name, "RTX A6000", make, operations, operations / gflops / 1e9, SGEMM_PAGE)


def _transpose(name: str, milliseconds: float, **how) -> Published:
    return Published(
        name, "H100 SXM", partial(transpose, 32768, **how), 0, milliseconds / 1e3, TRANSPOSE_PAGE
    )


def _on_tensor_cores(name: str, board: str, side: int, tflops: float, source: str) -> Published:
    """A product of (side, side) matrices by our kernels with the published instructions: mma.sync, or wgmma."""
    operations, tile = 2 * side**3, WGMMA_TILES[0]
    seconds = operations / tflops / 1e12
    if board == "A100 SXM 40 GB":
        make = partial(mma_matmul, side, side, side, "float16", "float16", MMA_TILES[1])
        return Published(name, board, make, operations, seconds, source)
    make = partial(wgmma_matmul, side, side, side, "bfloat16", "bfloat16", tile)
    return Published(
        name, board, make, operations, seconds, source, (side, side, side, "bfloat16", tile)
    )


# The page says "4092 × 4092"; its program multiplies 4096 × 4096.
PUBLISHED = (
    _sgemm("SGEMM 1, naive", 309.0, Tile(32, 32), down_columns=True),
    _sgemm("SGEMM 2, coalesced", 1986.5, Tile(32, 32)),
    _sgemm("SGEMM 3, shared memory", 2980.3, Tile(32, 32, 32)),
    _sgemm("SGEMM 4, 8 × 1 per thread", 8474.7, Tile(64, 64, 8, 8, 1)),
    _sgemm("SGEMM 5, 8 × 8 per thread", 15971.7, Tile(128, 128, 8, 8, 8)),
    _sgemm("SGEMM 6, copies of 16 bytes", 18237.3, Tile(128, 128, 8, 8, 8, 4, turned=True)),
    _on_tensor_cores("mma.sync, multistage, 4096", "A100 SXM 40 GB", 4096, 230, MMA_PAGE),
    _on_tensor_cores("mma.sync, multistage, 8192", "A100 SXM 40 GB", 8192, 245, MMA_PAGE),
    _on_tensor_cores("wgmma, 128 × 256, 6144", "H100 SXM", 6144, 774.4, WGMMA_PAGE),
    _on_tensor_cores("wgmma, 128 × 256, 8192", "H100 SXM", 8192, 799.1, WGMMA_PAGE),
    _transpose("transpose, naive", 18.0645, staged=False),
    _transpose("transpose, 32-way conflict", 8.6235),
    _transpose("transpose, padded", 5.0724, padding=1),
    _transpose("transpose, padded, 2 rows per thread", 3.6014, padding=1, rows=16),
    _transpose("transpose, padded, 4 rows per thread", 3.0984, padding=1, rows=8),
    _transpose("transpose, padded, 8 rows per thread", 3.0951, padding=1, rows=4),
)
