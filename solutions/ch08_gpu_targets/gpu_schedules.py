"""Chapter 8: the fused linear layer on a GPU, from one thread per element to tensor cores that start from the bias."""

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.script import tirx as T

from chapters.ch08_gpu_targets.given import ThreadTile, WarpTile, lane_products
from chapters.ch08_gpu_targets.warp_schedule import schedule_for_tensor_cores
from chapters.kit.gpu import wmma
from chapters.kit.gpu.cuda_resources import Resources
from chapters.kit.gpu.kernel_report import occupancy
from chapters.kit.gpu.limits import STATIC_SHARED_BYTES, WARP


def bind_elementwise(sch: Schedule, block: SBlockRV, threads: int, vector: int) -> None:
    """Bind all loops of the elementwise `block` to blocks of `threads` threads.

    Each thread computes `vector` neighbouring elements, with vector loads and stores. Neighbouring threads have
    neighbouring vectors. Every element is computed, also if their number is not a multiple of threads * vector.
    """
    # BEGIN exercise 8.1 (about 5 lines): one loop of all, then blocks, threads and lanes
    loop = sch.fuse(*sch.get_loops(block))
    grid, thread, lane = sch.split(loop, [None, threads, vector])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)
    # END exercise 8.1


def schedule_within_limits(sch: Schedule, block: SBlockRV) -> None:
    """Schedule the fused layer `block` as one kernel that stays within the limits of both goals in `goals.py`.

    block: D = A @ B.T + C with the loops i (rows of D), j (columns) and k (the sum), whose init is the bias. A, B, C
    and D are float32. The check schedules m, n, k = 64, 128, 64 and other multiples of 64; its limits are for
    64, 128, 64. Any primitives, and any number of calls.
    """
    # BEGIN exercise 8.2 (about 35 lines): blocks, threads, and where A, B and the sums are kept
    own = 4
    stored = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    i_block, i_thread, i_own = sch.split(i, [None, 8, own])
    j_block, j_thread, j_own = sch.split(j, [None, 8, own])
    k0, k1 = sch.split(k, [None, 16])
    sch.reorder(i_block, j_block, i_thread, j_thread, k0, k1, i_own, j_own)
    sch.bind(i_block, "blockIdx.y")
    sch.bind(j_block, "blockIdx.x")
    sch.bind(i_thread, "threadIdx.y")
    sch.bind(j_thread, "threadIdx.x")
    sch.unroll(i_own)
    sch.unroll(j_own)
    sch.reverse_compute_at(stored, j_thread)
    sch.vectorize(sch.get_loops(stored)[-1])
    sch.decompose_reduction(block, k0)
    for name in ("A", "B"):
        reads = [str(region.source.name) for region in sch.get(block).reads]
        copy = sch.cache_read(block, reads.index(name), "shared")
        sch.compute_at(copy, k0)
        elements = sch.fuse(*sch.get_loops(copy)[-2:])
        _, y, x, lane = sch.split(elements, [None, 8, 8, 2])
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
        sch.vectorize(lane)
        sch.storage_align(copy, 0, axis=-2, factor=16, offset=2)
    # END exercise 8.2


def best_tile(compiled: Sequence[tuple[ThreadTile, Resources]], arch: str) -> ThreadTile:
    """Return the tile that loads the least per element of D, among those of `compiled` whose kernels are sound.

    compiled: pairs of a tile and what its kernel uses on `arch`. Sound: it can be launched and keeps all its numbers in
    registers. Among equals, the higher occupancy wins. Raises ValueError if none is sound.
    """

    # BEGIN exercise 8.3 (about 10 lines): what disqualifies a tile, and what does it load?
    def fits(tile: ThreadTile, used: Resources) -> bool:
        spilled = used.spill_store_bytes + used.spill_load_bytes
        small = used.shared_bytes <= STATIC_SHARED_BYTES and math.prod(tile.threads) <= 1024
        return not spilled and small and occupancy(used, math.prod(tile.threads), arch) > 0

    def cost(tile: ThreadTile, used: Resources) -> tuple[float, float]:
        loads = (tile.block_m + tile.block_n) / (tile.block_m * tile.block_n)
        return loads, -occupancy(used, math.prod(tile.threads), arch)

    sound = [pair for pair in compiled if fits(*pair)]
    if not sound:
        raise ValueError("No tile is sound: each spills or does not fit a multiprocessor.")
    return min(sound, key=lambda pair: cost(*pair))[0]
    # END exercise 8.3


def decode_matmul(n: int, k: int, dtype: str) -> tirx.PrimFunc:
    """Return the matmul of one row, A (1, k), with its bias: a block of one warp computes one element of D (1, n).

    Lane t of the 32 adds up the products of vectors t, t + 32, t + 64, ... of 16 bytes, with up to four of them in
    flight. Then the lanes add up their sums. Raises ValueError unless k is a multiple of 32 such vectors. Chapter 6's
    primitive refuses to fuse here, so the bias is added by hand.
    """
    add_products = lane_products(k, dtype)

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((1, k), dtype),
        B: T.Buffer((n, k), dtype),
        C: T.Buffer((n,), "float32"),
        D: T.Buffer((1, n), "float32"),
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        partial = T.sblock_alloc_buffer((WARP,), "float32", scope="local")
        total = T.sblock_alloc_buffer((1,), "float32", scope="local")
        # BEGIN exercise 8.4 (about 20 lines): the bias must be in the result once
        for column in T.thread_binding(n, thread="blockIdx.x"):
            for lane in T.thread_binding(WARP, thread="threadIdx.x"):
                with T.sblock("start"):
                    t = T.axis.spatial(WARP, lane)
                    partial[t] = T.float32(0)
                add_products(partial, A, B, column, lane)
            for lane in T.thread_binding(WARP, thread="threadIdx.x"):
                with T.sblock("add_lanes"):
                    t = T.axis.reduce(WARP, lane)
                    with T.init():
                        total[0] = T.float32(0)
                    total[0] += partial[t]
            for lane in T.thread_binding(WARP, thread="threadIdx.x"):
                with T.sblock("add_bias"):
                    j = T.axis.spatial(n, column)
                    T.where(lane == 0)
                    D[0, j] = total[0] + C[j]
        # END exercise 8.4

    return main


def bias_fragment() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Return the tensor intrinsic sums[i, j] = bias[j], which TVM does not have: a fragment that starts from 16 biases.

    It is (desc, impl). Each takes bias (16,) in global memory and sums (16, 16) of scope wmma.SUM_SCOPE, both float32.
    desc says in loops what is computed, and impl computes it with one call.
    """

    @T.prim_func(s_tir=True)
    def desc(bias: T.handle, sums: T.handle) -> None:
        C = T.match_buffer(bias, (16,), "float32", align=64, offset_factor=1, scope="global")
        S = wmma.tile(sums, "float32", wmma.SUM_SCOPE)
        # BEGIN exercise 8.5 (about 7 lines): what the init of the fused matmul does, for one tile
        with T.sblock("root"):
            T.reads(C[0:16])
            T.writes(S[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("init"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    S[vi, vj] = C[vj]
        # END exercise 8.5

    @T.prim_func(s_tir=True)
    def impl(bias: T.handle, sums: T.handle) -> None:
        C = T.match_buffer(bias, (16,), "float32", align=64, offset_factor=1, scope="global")
        S = wmma.tile(sums, "float32", wmma.SUM_SCOPE, strided=True)
        # BEGIN exercise 8.5 (about 7 lines): the same reads and writes, and one call
        with T.sblock("root"):
            T.reads(C[0:16])
            T.writes(S[0:16, 0:16])
            T.evaluate(
                T.cuda.func_call(
                    "start_from_row",
                    S.data,
                    wmma.fragment_index(S),
                    C.access_ptr("r"),
                    source_code=wmma.START_FROM_ROW,
                )
            )
        # END exercise 8.5

    return desc, impl


def tensor_core_matmul(
    func: tirx.PrimFunc, tile: WarpTile | None = None, overlap: bool = False
) -> tirx.PrimFunc:
    """Return the kit's linear_bias `func`, on float16 or bfloat16, on tensor cores, from your `bias_fragment`.

    Sizes are multiples of the tile's. overlap: keep the copies to shared memory in flight.
    """
    return schedule_for_tensor_cores(func, tile or WarpTile(), bias_fragment(), overlap)
