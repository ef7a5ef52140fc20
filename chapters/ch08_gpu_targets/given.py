"""What chapter 8 provides: two ways to tile a matmul, kernels made of your steps, and code outside the exercises."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.script import tirx as T

from chapters.kit.gpu import wmma
from chapters.kit.gpu.limits import ITEM_BYTES, WARP, warp_step
from chapters.runner.earlier import earlier

H200 = "nvidia/nvidia-h200"
Staged = tuple[Schedule, LoopRV]  # with the loop over blocks of k


def start_from_bias(func: tirx.PrimFunc) -> tuple[Schedule, SBlockRV]:
    """A schedule of `func` (the kit's matmul_bias) with the bias fused by chapter 6, and its only block."""
    sch = Schedule(func)
    earlier(6).fuse_reduction_epilogue(sch, "matmul", "bias")
    return sch, sch.get_sblock("matmul")


# --- how a matmul is tiled ------------------------------------------------------------------------


@dataclass(frozen=True)
class ThreadTile:
    """How a matmul is tiled: a block computes (block_m, block_n) elements of D, each thread (thread_m, thread_n).

    block_k: how many steps of the sums are staged in shared memory at a time. vector: elements per load from memory.
    thread_m divides block_m and thread_n divides block_n. Each block_* divides the matmul's size of that name.
    """

    block_m: int
    block_n: int
    block_k: int
    thread_m: int
    thread_n: int
    vector: int = 1

    @property
    def threads(self) -> tuple[int, int]:
        """(threads along m, threads along n) of a block: threadIdx.y and threadIdx.x."""
        return self.block_m // self.thread_m, self.block_n // self.thread_n


@dataclass(frozen=True)
class WarpTile:
    """How a matmul is tiled for tensor cores: like ThreadTile, but a warp, not a thread, computes (warp_m, warp_n).

    All five are multiples of 16, except vector, the elements per load.
    """

    block_m: int = 64
    block_n: int = 64
    block_k: int = 32
    warp_m: int = 32
    warp_n: int = 32
    vector: int = 8

    @property
    def threads(self) -> tuple[int, int, int]:
        """(warps along m, warps along n, threads of a warp): threadIdx.z, threadIdx.y, threadIdx.x."""
        return self.block_m // self.warp_m, self.block_n // self.warp_n, WARP


# --- kernels made of your steps -------------------------------------------------------------------


@dataclass(frozen=True)
class Kernels:
    """The chapter's kernels of a linear layer, put together from the steps that you write.

    Every method takes the kit's matmul_bias and a tile, and returns the scheduled PrimFunc.
    """

    tile_and_bind: Callable[[Schedule, SBlockRV, ThreadTile], LoopRV]
    row_padding: Callable[[int, int, int, int], int]
    stage_in_shared: Callable[[Schedule, SBlockRV, str, LoopRV, ThreadTile, int], SBlockRV]
    overlap_copies: Callable[[Schedule, LoopRV], None]
    bias_fragment: Callable[[], wmma.Intrinsic]

    def naive_matmul(self, func: tirx.PrimFunc, tile: ThreadTile) -> tirx.PrimFunc:
        """`func` fused, tiled and bound; A and B are read from global memory at every step."""
        sch, block = start_from_bias(func)
        self.tile_and_bind(sch, block, tile)
        return sch.mod["main"]

    def shared_matmul(
        self, func: tirx.PrimFunc, tile: ThreadTile, padding: int | None = None
    ) -> tirx.PrimFunc:
        """`naive_matmul` with A and B staged in shared memory. padding: elements per row; None: `row_padding`'s."""
        sch, _ = self._staged(func, tile, padding)
        return sch.mod["main"]

    def pipelined_matmul(self, func: tirx.PrimFunc, tile: ThreadTile) -> tirx.PrimFunc:
        """`shared_matmul` with its copies in flight. tile.vector is 4, 8 or 16 bytes, the widths of cp.async."""
        sch, k0 = self._staged(func, tile, None)
        self.overlap_copies(sch, k0)
        return sch.mod["main"]

    def _staged(self, func: tirx.PrimFunc, tile: ThreadTile, padding: int | None) -> Staged:
        if padding is None:
            item_bytes = ITEM_BYTES[str(func.params[0].dtype)]
            padding = self.row_padding(tile.block_k, tile.thread_n, item_bytes, tile.vector)
        sch, block = start_from_bias(func)
        k0 = self.tile_and_bind(sch, block, tile)
        for name in ("A", "B"):
            self.stage_in_shared(sch, block, name, k0, tile, padding)
        return sch, k0

    def tensor_core_matmul(
        self, func: tirx.PrimFunc, tile: WarpTile | None = None, overlap: bool = False
    ) -> tirx.PrimFunc:
        """`func`, on float16 or bfloat16, fused and computed by tensor cores, its sums started from the bias.

        Sizes are multiples of the tile's. overlap: keep the copies to shared memory in flight, by `overlap_copies`.
        """
        sch, k0 = _tensor_core_schedule(func, tile or WarpTile(), self.bias_fragment())
        if overlap:
            self.overlap_copies(sch, k0)
        return sch.mod["main"]


# --- one row --------------------------------------------------------------------------------------


def lane_products(k: int, dtype: str) -> Callable:
    """A part of the kernel for one row, to call in its TVMScript: add_products(partial, A, B, column, lane).

    It adds to partial[lane] the products of vectors lane, lane + 32, lane + 64, ... of row 0 of A and of row `column`
    of B. A vector has 16 bytes; a lane has up to eight vectors of each operand in flight. Raises ValueError unless k is
    a multiple of 32 vectors.
    """
    if k % warp_step(dtype) or k == 0:
        raise ValueError(
            f"k is {k}, and one step of a warp takes {warp_step(dtype)} elements of {dtype}: the rest of the sum would "
            "be left out. Use this kernel only if k is a multiple of that and not 0."
        )
    vector, steps = warp_step(dtype) // WARP, k // warp_step(dtype)
    group = math.gcd(steps, 8)  # more than that many vectors of A and B do not fit into registers

    @T.inline
    def add_products(partial, A, B, column, lane):
        a = T.sblock_alloc_buffer((group, vector), dtype, scope="local")
        b = T.sblock_alloc_buffer((group, vector), dtype, scope="local")
        for g in T.serial(steps // group):
            for s in T.unroll(group):
                for v in T.vectorized(vector):
                    with T.sblock("load_b"):
                        j = T.axis.spatial(B.shape[0], column)
                        p = T.axis.spatial(k, ((g * group + s) * WARP + lane) * vector + v)
                        b[p // vector // WARP % group, p % vector] = B[j, p]
            for s in T.unroll(group):
                for v in T.vectorized(vector):
                    with T.sblock("load_a"):
                        p = T.axis.spatial(k, ((g * group + s) * WARP + lane) * vector + v)
                        a[p // vector // WARP % group, p % vector] = A[0, p]
            for s, v in T.grid(group, vector):
                with T.sblock("add_own"):
                    t = T.axis.spatial(WARP, lane)
                    q = T.axis.reduce(steps, g * group + s)
                    e = T.axis.reduce(vector, v)
                    partial[t] += T.float32(a[q % group, e]) * T.float32(b[q % group, e])

    return add_products


# --- tensor cores ---------------------------------------------------------------------------------


def _tensor_core_schedule(func: tirx.PrimFunc, tile: WarpTile, start: wmma.Intrinsic) -> Staged:
    """`func` fused and scheduled for tensor cores; its loop over blocks of k. start: what `bias_fragment` returns."""
    sch, block = start_from_bias(func)
    stored = sch.cache_write(block, 0, wmma.SUM_SCOPE)
    reads = [str(region.source.name) for region in sch.get(block).reads]
    shared = [sch.cache_read(block, reads.index(name), "shared") for name in ("A", "B")]
    scopes = {"A": wmma.A_SCOPE, "B": wmma.B_SCOPE}
    fragments = {name: sch.cache_read(block, reads.index(name), scopes[name]) for name in scopes}

    j_warp, k0, k1, inside = _cut_for_warps(sch, block, tile)
    for copy in fragments.values():
        sch.compute_at(copy, k1)
    for copy in shared:
        sch.compute_at(copy, k0)
        _share_out(sch, copy, tile)
    sch.reverse_compute_at(stored, j_warp)
    init = sch.decompose_reduction(block, k0)
    for half in (init, block):
        earlier(6).refresh_regions(sch, half)

    dtype = str(func.params[0].dtype)
    for name, copy in fragments.items():
        intrinsic = wmma.register(f"load_{name}_{dtype}", wmma.load(scopes[name], dtype))
        sch.tensorize(_whole_tiles(sch, copy), intrinsic)
    sch.tensorize(_whole_tiles(sch, stored), wmma.register("store_sums", wmma.store()))
    i_tile, j_tile, i_in = inside
    sch.unroll(i_tile)
    sch.unroll(j_tile)
    sch.tensorize(i_in, wmma.register(f"multiply_add_{dtype}", wmma.multiply_add(dtype)))
    *_, i_tile, j_tile, i_in, _ = sch.get_loops(init)
    sch.unroll(i_tile)
    sch.unroll(j_tile)
    sch.tensorize(i_in, wmma.register("start_from_bias", start))
    return sch, k0


def _cut_for_warps(
    sch: Schedule, block: SBlockRV, tile: WarpTile
) -> tuple[LoopRV, LoopRV, LoopRV, tuple[LoopRV, LoopRV, LoopRV]]:
    """Split and bind the loops of the fused matmul.

    Returns the loops over warps along n, blocks of k, steps of 16 in a block, and (tiles along m, along n, rows of a
    tile).
    """
    i, j, k = sch.get_loops(block)
    i_block, i_warp, i_tile, i_in = sch.split(i, [None, tile.threads[0], tile.warp_m // 16, 16])
    j_block, j_warp, j_tile, j_in = sch.split(j, [None, tile.threads[1], tile.warp_n // 16, 16])
    k0, k1, k_in = sch.split(k, [None, tile.block_k // 16, 16])
    sch.reorder(i_block, j_block, i_warp, j_warp, k0, k1, i_tile, j_tile, i_in, j_in, k_in)
    tags = ("blockIdx.y", "blockIdx.x", "threadIdx.z", "threadIdx.y")
    for loop, tag in zip((i_block, j_block, i_warp, j_warp), tags, strict=True):
        sch.bind(loop, tag)
    return j_warp, k0, k1, (i_tile, j_tile, i_in)


def _share_out(sch: Schedule, copy: SBlockRV, tile: WarpTile) -> None:
    """Let all threads of the block make a copy to shared memory, `tile.vector` elements at a time; pad its rows."""
    elements = sch.fuse(*sch.get_loops(copy)[-2:])
    _, z, y, x, lane = sch.split(elements, [None, *tile.threads, tile.vector])
    for loop, axis in zip((z, y, x), "zyx", strict=True):
        sch.bind(loop, f"threadIdx.{axis}")
    sch.vectorize(lane)
    sch.storage_align(copy, 0, axis=-2, factor=tile.block_k, offset=8)


def _whole_tiles(sch: Schedule, block: SBlockRV) -> LoopRV:
    """Split the last two loops of `block` into 16 x 16 tiles, unroll those over tiles; returns the loop over rows."""
    i, j = sch.get_loops(block)[-2:]
    i_tile, i_in = sch.split(i, [None, 16])
    j_tile, j_in = sch.split(j, [None, 16])
    sch.reorder(i_tile, j_tile, i_in, j_in)
    sch.unroll(i_tile)
    sch.unroll(j_tile)
    return i_in
