"""The kernels of `ThreadTile`s: sums in registers, copies in shared memory, and copies in flight.

It is one answer to exercise 8.2, in general form. Solve 8.2 before you read it.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from chapters.ch08_gpu_targets.given import Staged, ThreadTile, WarpTile, start_from_bias
from chapters.kit.gpu.limits import BANK_BYTES, BANKS, ITEM_BYTES
from chapters.runner.earlier import earlier


def naive_matmul(func: tirx.PrimFunc, tile: ThreadTile) -> tirx.PrimFunc:
    """Return the kit's linear_bias `func` fused, tiled and bound; A and B are read from global memory at every step."""
    sch, block = start_from_bias(func)
    tile_and_bind(sch, block, tile)
    return sch.mod["main"]


def shared_matmul(
    func: tirx.PrimFunc, tile: ThreadTile, padding: int | None = None
) -> tirx.PrimFunc:
    """Return `naive_matmul` with A and B staged in shared memory. padding: elements per row; None: `row_padding`'s."""
    return _stage(func, tile, padding)[0].mod["main"]


def pipelined_matmul(func: tirx.PrimFunc, tile: ThreadTile) -> tirx.PrimFunc:
    """Return `shared_matmul` with its copies in flight. tile.vector is 4, 8 or 16 bytes, the widths of cp.async."""
    sch, k0 = _stage(func, tile, None)
    overlap_copies(sch, k0)
    return sch.mod["main"]


def _stage(func: tirx.PrimFunc, tile: ThreadTile, padding: int | None) -> Staged:
    if padding is None:
        item_bytes = ITEM_BYTES[str(func.params[0].dtype)]
        padding = row_padding(tile.block_k, tile.thread_n, item_bytes, tile.vector)
    sch, block = start_from_bias(func)
    k0 = tile_and_bind(sch, block, tile)
    for name in ("A", "B"):
        reads = [str(region.source.name) for region in sch.get(block).reads]
        copy = sch.cache_read(block, reads.index(name), "shared")
        sch.compute_at(copy, k0)
        share_out(sch, copy, tile, padding)
    return sch, k0


# --- the steps ------------------------------------------------------------------------------------


def tile_and_bind(sch: Schedule, block: SBlockRV, tile: ThreadTile) -> LoopRV:
    """Cut the fused matmul `block` into `tile`, keep its sums in registers, and return the loop over pieces of k.

    Loops afterwards, from the outside: blockIdx.y and blockIdx.x (tiles of D along m and n), threadIdx.y and
    threadIdx.x, k0 (the one returned; a piece is block_k steps), k1, then a thread's own rows and columns, both
    unrolled. A thread's rows and columns are neighbours, and so are the columns of neighbouring threads. The sums stay
    in a buffer of scope "local". They are set from the bias before k0 begins, and are stored after it ends, as vectors
    of as many columns as divide both thread_n and 4. Both halves declare what they read (`refresh_regions`).
    """
    stored = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    rows, columns = tile.threads
    i_block, i_thread, i_own = sch.split(i, [None, rows, tile.thread_m])
    j_block, j_thread, j_own = sch.split(j, [None, columns, tile.thread_n])
    k0, k1 = sch.split(k, [None, tile.block_k])
    sch.reorder(i_block, j_block, i_thread, j_thread, k0, k1, i_own, j_own)
    tags = ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x")
    for loop, tag in zip((i_block, j_block, i_thread, j_thread), tags, strict=True):
        sch.bind(loop, tag)
    sch.unroll(i_own)
    sch.unroll(j_own)
    sch.reverse_compute_at(stored, j_thread, preserve_unit_loops=True)
    _, lane = sch.split(sch.get_loops(stored)[-1], [None, math.gcd(tile.thread_n, 4)])
    sch.vectorize(lane)
    init = sch.decompose_reduction(block, k0)
    for half in (init, block):
        earlier(6).refresh_regions(sch, half)
    return k0


def row_padding(block_k: int, step: int, item_bytes: int, vector: int) -> int:
    """Return how many elements to leave unused after each row of `block_k` elements in shared memory.

    The lanes of a warp read, at the same column, rows that are `step` apart. Shared memory has BANKS banks, each
    BANK_BYTES wide: word w is in bank w % BANKS, and different words of one bank are read one after the other. The
    padding is the smallest multiple of `vector` (elements per store) for which a row is whole words long and the rows
    begin in as many banks as possible. item_bytes: bytes per element.
    """

    def banks(padding: int) -> int:
        row_bytes = (block_k + padding) * item_bytes
        whole = row_bytes % BANK_BYTES == 0
        return BANKS // math.gcd(step * row_bytes // BANK_BYTES, BANKS) if whole else 0

    return max(range(0, BANKS * vector, vector), key=banks)


def share_out(sch: Schedule, copy: SBlockRV, tile: ThreadTile | WarpTile, padding: int) -> None:
    """Let all threads of the block share the work of a copy to shared memory.

    A thread takes `tile.vector` neighbouring elements at a time, with one load and one store, and the next thread the
    next ones. `padding` elements stay unused after each row of the copy.
    """
    elements = sch.fuse(*sch.get_loops(copy)[-2:])
    _, *threads, lane = sch.split(elements, [None, *tile.threads, tile.vector])
    for loop, axis in zip(threads, "zyx"[-len(threads) :], strict=True):
        sch.bind(loop, f"threadIdx.{axis}")
    sch.vectorize(lane)
    sch.storage_align(copy, 0, axis=-2, factor=tile.block_k, offset=padding)


def overlap_copies(sch: Schedule, k0: LoopRV) -> None:
    """Keep the copies for the next piece of k in flight while this piece is computed.

    The body of `k0` has three statements: the copy of A, the copy of B, the steps. Afterwards `k0` is a software
    pipeline of two stages: copies in stage 0, steps in stage 1, in the order in which they stand now. Stage 0 is
    asynchronous. TVM then gives each copy two buffers, starts the first copies before the loop, and computes the last
    piece after it.
    """
    sch.annotate(k0, "software_pipeline_stage", [0, 0, 1])
    sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
    sch.annotate(k0, "software_pipeline_async_stages", [0])
