"""The schedule of `tensor_core_matmul`: tiles for warps, two levels of copies, and five tensorized loop nests.

It uses the primitives of exercise 8.2 in much the same way. Solve 8.2 before you read it.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from chapters.ch08_gpu_targets.given import Staged, WarpTile, start_from_bias
from chapters.ch08_gpu_targets.thread_schedule import overlap_copies, share_out
from chapters.kit.gpu import wmma
from chapters.runner.earlier import earlier


def schedule_for_tensor_cores(
    func: tirx.PrimFunc, tile: WarpTile, start: wmma.Intrinsic, overlap: bool = False
) -> tirx.PrimFunc:
    """Return the kit's linear_bias `func`, on float16 or bfloat16, fused and scheduled for tensor cores.

    Sizes are multiples of the tile's. start: the intrinsic of `bias_fragment`, which replaces the init. overlap: keep
    the copies to shared memory in flight.
    """
    sch, k0 = _schedule(func, tile, start)
    if overlap:
        overlap_copies(sch, k0)
    return sch.mod["main"]


def _schedule(func: tirx.PrimFunc, tile: WarpTile, start: wmma.Intrinsic) -> Staged:
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
        share_out(sch, copy, tile, padding=8)
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

    Returns the loops over warps along n, pieces of k, steps of 16 in a piece, and (tiles along m, along n, rows of a
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


def _whole_tiles(sch: Schedule, block: SBlockRV) -> LoopRV:
    """Split the last two loops of `block` into 16 x 16 tiles, unroll those over tiles; return the loop over rows."""
    i, j = sch.get_loops(block)[-2:]
    i_tile, i_in = sch.split(i, [None, 16])
    j_tile, j_in = sch.split(j, [None, 16])
    sch.reorder(i_tile, j_tile, i_in, j_in)
    sch.unroll(i_tile)
    sch.unroll(j_tile)
    return i_in
