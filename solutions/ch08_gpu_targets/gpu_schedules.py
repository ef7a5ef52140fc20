"""Chapter 8: the fused linear layer on a GPU, from one thread per element to tensor cores that start from the bias."""

import math
from collections.abc import Sequence

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.script import tirx as T
from tvm.target import Target

from chapters.ch08_gpu_targets.given import H200, Kernels, ThreadTile, WarpTile, lane_products
from chapters.kit.gpu import wmma
from chapters.kit.gpu.cuda_resources import Resources
from chapters.kit.gpu.limits import BANK_BYTES, BANKS, LIMITS, STATIC_SHARED_BYTES, WARP, warp_step
from chapters.runner.earlier import earlier


def h200_target() -> Target:
    """Return the target of an H200, `Target({"tag": "nvidia/nvidia-h200"})`; register the tag if TVM does not have it.

    The tag: kind cuda, arch sm_90a (the `a` admits the instructions that only this architecture has), 1024 threads per
    block (`max_num_threads`, `max_threads_per_block`), warps of 32 threads (`thread_warp_size`), per block 48 KiB of
    static shared memory (`max_shared_memory_per_block`) and 65536 registers (`registers_per_block`), and 50 MiB of
    second-level cache (`l2_cache_size_bytes`). A tag that TVM already has stays as it is.
    """
    # BEGIN exercise 8.1 (about 15 lines): register the tag if it is missing; return the target by its tag
    if H200 not in tvm.target.list_tags():
        tvm.target.register_tag(
            H200,
            {
                "kind": "cuda",
                "arch": "sm_90a",
                "max_num_threads": 1024,
                "max_threads_per_block": 1024,
                "thread_warp_size": WARP,
                "max_shared_memory_per_block": STATIC_SHARED_BYTES,
                "registers_per_block": 65536,
                "l2_cache_size_bytes": 50 * 1024 * 1024,
            },
        )
    return Target({"tag": H200})
    # END exercise 8.1


def bind_elementwise(sch: Schedule, block: SBlockRV, threads: int, vector: int) -> None:
    """Bind all loops of the elementwise `block` to blocks of `threads` threads.

    Each thread computes `vector` neighbouring elements, with vector loads and stores. Neighbouring threads have
    neighbouring vectors. Every element is computed, also if their number is not a multiple of threads * vector.
    """
    # BEGIN exercise 8.2 (about 5 lines): one loop of all, then blocks, threads and lanes
    loop = sch.fuse(*sch.get_loops(block))
    grid, thread, lane = sch.split(loop, [None, threads, vector])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)
    # END exercise 8.2


def bytes_loaded(m: int, n: int, k: int, tile: ThreadTile, item_bytes: int) -> dict[str, int]:
    """Return how many bytes of A and B all threads together load from global memory: {"naive": ..., "tiled": ...}.

    naive: each thread computes one element of D and loads everything that it needs. tiled: each block loads every
    element of A and B that its tile needs once, into shared memory. m, n and k are multiples of the tile's sizes.
    """
    # BEGIN exercise 8.3 (about 3 lines): two formulas
    naive = m * n * 2 * k
    blocks = (m // tile.block_m) * (n // tile.block_n)
    return {
        "naive": naive * item_bytes,
        "tiled": blocks * (tile.block_m + tile.block_n) * k * item_bytes,
    }
    # END exercise 8.3


def tile_and_bind(sch: Schedule, block: SBlockRV, tile: ThreadTile) -> LoopRV:
    """Cut the fused matmul `block` into `tile`, keep its sums in registers, and return the loop over pieces of k.

    Loops afterwards, from the outside: blockIdx.y and blockIdx.x (tiles of D along m and n), threadIdx.y and
    threadIdx.x, k0 (the one returned; a piece is block_k steps), k1, then a thread's own rows and columns, both
    unrolled. A thread's rows and columns are neighbours, and so are the columns of neighbouring threads. The sums stay
    in a buffer of scope "local". They are set from the bias before k0 begins, and are stored after it ends, as vectors
    of as many columns as divide both thread_n and 4. Both halves declare what they read (`refresh_regions`).
    """
    # BEGIN exercise 8.4 (about 20 lines): the traced example, with one dimension more
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
    # END exercise 8.4


def row_padding(block_k: int, step: int, item_bytes: int, vector: int) -> int:
    """Return how many elements to leave unused after each row of `block_k` elements in shared memory.

    The lanes of a warp read, at the same column, rows that are `step` apart. Shared memory has BANKS banks, each
    BANK_BYTES wide: word w is in bank w % BANKS, and different words of one bank are read one after the other. The
    padding is the smallest multiple of `vector` (elements per store) for which a row is whole words long and the rows
    begin in as many banks as possible. item_bytes: bytes per element.
    """

    # BEGIN exercise 8.5 (about 8 lines): which padding reaches the most banks?
    def banks(padding: int) -> int:
        row_bytes = (block_k + padding) * item_bytes
        whole = row_bytes % BANK_BYTES == 0
        return BANKS // math.gcd(step * row_bytes // BANK_BYTES, BANKS) if whole else 0

    return max(range(0, BANKS * vector, vector), key=banks)
    # END exercise 8.5


def stage_in_shared(
    sch: Schedule, block: SBlockRV, name: str, at: LoopRV, tile: ThreadTile, padding: int
) -> SBlockRV:
    """Copy the part of the operand `name` that one iteration of `at` needs to shared memory; return the copy's block.

    All threads of the block share the work: thread (y, x) takes `tile.vector` neighbouring elements at a time, with one
    load and one store, and the next thread the next ones. `padding` elements stay unused after each row of the copy.
    """
    # BEGIN exercise 8.5 (about 10 lines): make the copy, share it out, pad its rows
    reads = [str(region.source.name) for region in sch.get(block).reads]
    copy = sch.cache_read(block, reads.index(name), "shared")
    sch.compute_at(copy, at)
    elements = sch.fuse(*sch.get_loops(copy)[-2:])
    _, y, x, lane = sch.split(elements, [None, *tile.threads, tile.vector])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.vectorize(lane)
    sch.storage_align(copy, 0, axis=-2, factor=tile.block_k, offset=padding)
    return copy
    # END exercise 8.5


def without_barrier(source: str) -> str:
    """Return the CUDA text of a `shared_matmul` without the one __syncthreads(); that a short test does not need.

    The two barriers are in the loop over pieces of k. Without this one, the first iteration is right in any order of
    the threads. From the second iteration on, threads may read numbers of the wrong piece.
    """
    # BEGIN exercise 8.6 (about 2 lines): which of the two separates one iteration from the next?
    first = source.index("__syncthreads();")
    return source[:first] + source[first:].replace("__syncthreads();", "", 1)
    # END exercise 8.6


def overlap_copies(sch: Schedule, k0: LoopRV) -> None:
    """Keep the copies for the next piece of k in flight while this piece is computed.

    The body of `k0` has three statements: the copy of A, the copy of B, the steps. Afterwards `k0` is a software
    pipeline of two stages: copies in stage 0, steps in stage 1, in the order in which they stand now. Stage 0 is
    asynchronous. TVM then gives each copy two buffers, starts the first copies before the loop, and computes the last
    piece after it.
    """
    # BEGIN exercise 8.7 (about 3 lines): three annotations
    sch.annotate(k0, "software_pipeline_stage", [0, 0, 1])
    sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
    sch.annotate(k0, "software_pipeline_async_stages", [0])
    # END exercise 8.7


def occupancy(used: Resources, threads: int, arch: str) -> float:
    """Return the share of a multiprocessor's threads that are resident while it runs this kernel, 0 to 1.

    threads: per block. LIMITS[arch] has four limits, and each allows a number of resident blocks: `blocks`; `threads`,
    counted in whole warps; `registers`, which a warp gets in portions of `register_portion`, where the number of warps
    that get some is rounded down to a multiple of `warp_portion`; `shared_bytes`, which a block gets in portions of
    `shared_portion`, after `shared_reserved` is added. The smallest number counts.
    """
    # BEGIN exercise 8.8 (about 10 lines): how many blocks does each limit allow?
    limit = LIMITS[arch]
    warps = math.ceil(threads / WARP)
    registers = math.ceil(used.registers * WARP / limit.register_portion) * limit.register_portion
    shared = used.shared_bytes + limit.shared_reserved
    shared = math.ceil(shared / limit.shared_portion) * limit.shared_portion
    by_registers = limit.registers // max(registers, 1) // limit.warp_portion * limit.warp_portion
    blocks = min(
        limit.blocks,
        limit.threads // WARP // warps,
        by_registers // warps,
        limit.shared_bytes // max(shared, 1),
    )
    return blocks * warps * WARP / limit.threads
    # END exercise 8.8


def best_tile(compiled: Sequence[tuple[ThreadTile, Resources]], arch: str) -> ThreadTile:
    """Return the tile that loads the least per element of D, among those of `compiled` whose kernels are sound.

    compiled: pairs of a tile and what its kernel uses on `arch`. Sound: it spills nothing, has at most 1024 threads and
    STATIC_SHARED_BYTES per block, and at least one block fits. Among equals, the higher occupancy wins. Raises
    ValueError if none is sound.
    """

    # BEGIN exercise 8.9 (about 10 lines): what disqualifies a tile, and what does it load?
    def fits(tile: ThreadTile, used: Resources) -> bool:
        spilled = used.spill_store_bytes + used.spill_load_bytes
        small = used.shared_bytes <= STATIC_SHARED_BYTES and math.prod(tile.threads) <= 1024
        return not spilled and small and occupancy(used, math.prod(tile.threads), arch) > 0

    def cost(tile: ThreadTile, used: Resources) -> tuple[float, float]:
        loads = 1 / tile.block_m + 1 / tile.block_n
        return loads, -occupancy(used, math.prod(tile.threads), arch)

    sound = [pair for pair in compiled if fits(*pair)]
    if not sound:
        raise ValueError("No tile is sound: each spills or does not fit a multiprocessor.")
    return min(sound, key=lambda pair: cost(*pair))[0]
    # END exercise 8.9


def decode_matmul(n: int, k: int, dtype: str) -> tirx.PrimFunc:
    """Return the matmul of one row, A (1, k), with its bias: a block of one warp computes one element of D (1, n).

    Lane t of the 32 adds up the products of vectors t, t + 32, t + 64, ... of 16 bytes, with up to four of them in
    flight. Then the lanes add up their sums. Raises ValueError unless k is a multiple of 32 such vectors. Chapter 6's
    primitive refuses to fuse here, because the lanes share the sum; so the bias is added by hand, once.
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
        # BEGIN exercise 8.10 (about 20 lines): the bias must be in the result once
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
        # END exercise 8.10

    return main


def bias_fragment() -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """Return the tensor intrinsic sums[i, j] = bias[j], which TVM does not have: a fragment that starts from 16 biases.

    It is (desc, impl). Each takes bias (16,) in global memory and sums (16, 16) of scope wmma.SUM_SCOPE, both float32.
    impl calls the device function `start_from_row` by T.cuda.func_call, which puts its text, wmma.START_FROM_ROW, in
    front of the kernel. The function loads a tile whose rows are 0 elements apart, so all 16 rows are the same.
    """

    @T.prim_func(s_tir=True)
    def desc(bias: T.handle, sums: T.handle) -> None:
        C = T.match_buffer(bias, (16,), "float32", align=64, offset_factor=1, scope="global")
        S = wmma.tile(sums, "float32", wmma.SUM_SCOPE)
        # BEGIN exercise 8.11 (about 7 lines): what the init of the fused matmul does, for one tile
        with T.sblock("root"):
            T.reads(C[0:16])
            T.writes(S[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("init"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    S[vi, vj] = C[vj]
        # END exercise 8.11

    @T.prim_func(s_tir=True)
    def impl(bias: T.handle, sums: T.handle) -> None:
        C = T.match_buffer(bias, (16,), "float32", align=64, offset_factor=1, scope="global")
        S = wmma.tile(sums, "float32", wmma.SUM_SCOPE, strided=True)
        # BEGIN exercise 8.11 (about 7 lines): the same reads and writes, and one call
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
        # END exercise 8.11

    return desc, impl


KERNELS = Kernels(tile_and_bind, row_padding, stage_in_shared, overlap_copies, bias_fragment)
naive_matmul, shared_matmul = KERNELS.naive_matmul, KERNELS.shared_matmul  # made of your steps
pipelined_matmul, tensor_core_matmul = KERNELS.pipelined_matmul, KERNELS.tensor_core_matmul


def choose_kernel(m: int, n: int, k: int, dtype: str, target: Target) -> str:
    """Return which kernel should compute this linear layer on `target`, a CUDA target: the first of four that applies.

    * "decode" (`decode_matmul`): there is one row (m is 1), and k is a multiple of 32 vectors of 16 bytes.
    * "tensor_cores" (`tensor_core_matmul`, fused): the architecture has tensor cores for `dtype` (float16 from sm_70,
      bfloat16 from sm_80), and the sizes are multiples of WarpTile's.
    * "dlight" (TVM's rule, as MatmulOnTensorCores, on the layer that is NOT fused before): float16, sm_70 or later, and
      m, n and k each above 64. It pads, so the sizes need not be multiples of anything.
    * "registers" (`shared_matmul`, fused): always.
    """
    # BEGIN exercise 8.12 (about 12 lines): target.attrs["arch"] is a text such as "sm_90a"
    generation = int("".join(c for c in str(target.attrs["arch"]) if c.isdigit()))
    first = {"float16": 70, "bfloat16": 80}.get(dtype)
    cores = first is not None and generation >= first
    tile = WarpTile()
    whole = m % tile.block_m == n % tile.block_n == k % tile.block_k == 0
    if m == 1 and k % warp_step(dtype) == 0:
        return "decode"
    if cores and whole:
        return "tensor_cores"
    if cores and dtype == "float16" and min(m, n, k) > 64:
        return "dlight"
    return "registers"
    # END exercise 8.12


def share_of_limit(
    seconds: float, operations: float, moved: float, rate: float, bandwidth: float
) -> tuple[float, str]:
    """Return how close a kernel is to the machine's limit, from 0 to 1, and what limits it: "memory" or "arithmetic".

    seconds: measured. operations: of arithmetic. moved: bytes that must be moved at least. rate, bandwidth: operations
    and bytes per second that the machine reaches. Raises ValueError if the time is less than limit / 1.05, because
    then one of the measurements is wrong.
    """
    # BEGIN exercise 8.13 (about 7 lines): two lower bounds for the time
    by_memory, by_arithmetic = moved / bandwidth, operations / rate
    limit = max(by_memory, by_arithmetic)
    if seconds < limit / 1.05:
        raise ValueError(
            f"{seconds:.3g} s is less than the machine needs, {limit:.3g} s: one of the measurements is wrong."
        )
    return min(limit / seconds, 1.0), "memory" if by_memory >= by_arithmetic else "arithmetic"
    # END exercise 8.13
