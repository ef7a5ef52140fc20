"""Chapter 8: the fused linear layer on a GPU, from one thread per element to tensor cores that start from the bias.

Each step keeps numbers closer to the arithmetic: in a block's shared memory, a thread's registers, a warp's fragments.
"""

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
    """The target of an H200, `Target({"tag": "nvidia/nvidia-h200"})`, which this release of TVM does not know.

    Registers the tag unless it is known: kind cuda, arch sm_90a (the `a` admits the instructions of this architecture
    alone), 1024 threads per block (`max_num_threads`, `max_threads_per_block`), warps of 32 (`thread_warp_size`),
    48 KiB of static shared memory (`max_shared_memory_per_block`) and 65536 registers (`registers_per_block`) per
    block, 50 MiB of second-level cache (`l2_cache_size_bytes`). A known tag stays as it is.
    """
    # BEGIN exercise 8.1 (about 15 lines): look among tvm.target.list_tags() first
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
    """Bind all loops of `block`, which computes each element by itself, to blocks of `threads` threads.

    A thread computes `vector` neighbouring elements, with vector loads and stores; neighbouring threads have
    neighbouring vectors. The number of elements need not be a multiple of threads * vector: no element is left out.
    """
    # BEGIN exercise 8.2 (about 5 lines): fuse, split, bind, vectorise
    loop = sch.fuse(*sch.get_loops(block))
    grid, thread, lane = sch.split(loop, [None, threads, vector])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)
    # END exercise 8.2


def bytes_loaded(m: int, n: int, k: int, tile: ThreadTile, item_bytes: int) -> dict[str, int]:
    """The bytes of A and B that all threads together load from global memory: {"naive": ..., "tiled": ...}.

    naive: each thread computes one element of D and loads what that takes. tiled: a block of threads loads each
    element of A and B that its tile needs once, into shared memory. Every size is a multiple of the tile's.
    """
    # BEGIN exercise 8.3 (about 3 lines): count the loads of one element of D; then of one block, and the blocks
    naive = m * n * 2 * k
    blocks = (m // tile.block_m) * (n // tile.block_n)
    return {
        "naive": naive * item_bytes,
        "tiled": blocks * (tile.block_m + tile.block_n) * k * item_bytes,
    }
    # END exercise 8.3


def tile_and_bind(sch: Schedule, block: SBlockRV, tile: ThreadTile) -> LoopRV:
    """Cut the fused matmul `block` into `tile`, keep its sums in registers, and return the loop over blocks of k.

    Loops afterwards, from the outside: blockIdx.y and blockIdx.x (tiles of D along m and n), threadIdx.y and
    threadIdx.x, k0 (the one returned, block_k steps each), k1, then a thread's own rows and columns, both unrolled.
    A thread's rows and columns are neighbours, and so are the columns of neighbouring threads. The sums stay
    in a buffer of scope "local", are set from the bias before k0 begins, and are stored after it ends, as many columns
    at a time as divide both thread_n and 4. The regions of both halves are true (chapter 6's `refresh_regions`).
    """
    # BEGIN exercise 8.4 (about 20 lines): cache_write, split, reorder, bind, reverse_compute_at, decompose
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
    """How many elements to leave unused after each row of `block_k` elements in shared memory.

    The threads of a warp read, at the same column, rows that are `step` apart. Shared memory has BANKS banks, each
    BANK_BYTES wide: word w lies in bank w % BANKS, and different words of one bank are read one after the other. The
    padding is the smallest multiple of `vector` (stores of `vector` elements stay aligned) for which rows are whole
    words long and as many banks as possible take part.
    """

    # BEGIN exercise 8.5 (about 8 lines): try paddings; words that are d apart meet BANKS / gcd(d, BANKS) banks
    def banks(padding: int) -> int:
        row_bytes = (block_k + padding) * item_bytes
        whole = row_bytes % BANK_BYTES == 0
        return BANKS // math.gcd(step * row_bytes // BANK_BYTES, BANKS) if whole else 0

    return max(range(0, BANKS * vector, vector), key=banks)
    # END exercise 8.5


def stage_in_shared(
    sch: Schedule, block: SBlockRV, name: str, at: LoopRV, tile: ThreadTile, padding: int
) -> SBlockRV:
    """Copy the part of the operand called `name` that one iteration of `at` needs to shared memory; the copy's block.

    All threads of the block share the work: thread (y, x) takes `tile.vector` neighbouring elements at a time, in one
    load and one store, and the next thread the next ones. Rows of the copy lie `padding` elements apart.
    """
    # BEGIN exercise 8.5 (about 10 lines): cache_read, compute_at, fuse, split, bind, vectorise, storage_align
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
    """`source`, the CUDA C of a `shared_matmul`, without the one __syncthreads(); that a short test does not need.

    The two barriers stand in the loop over blocks of k. Without this one, the first iteration is right in any
    order of the threads; from the second one on, threads may read numbers of the wrong block.
    """
    # BEGIN exercise 8.6 (about 2 lines): which of the two orders something between two iterations?
    first = source.index("__syncthreads();")
    return source[:first] + source[first:].replace("__syncthreads();", "", 1)
    # END exercise 8.6


def overlap_copies(sch: Schedule, k0: LoopRV) -> None:
    """Let the copies for the next block of k be in flight while this one is computed.

    The body of `k0` is three statements: the copy of A, the copy of B, the steps. Afterwards `k0` is a software
    pipeline of two stages, copies in stage 0 and steps in stage 1, in the order in which they stand, and stage 0 is
    asynchronous. TVM then gives each copy two halves, starts the first copies before the loop and computes the last
    block after it.
    """
    # BEGIN exercise 8.7 (about 3 lines): three annotations, software_pipeline_...: stage, order, async_stages
    sch.annotate(k0, "software_pipeline_stage", [0, 0, 1])
    sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
    sch.annotate(k0, "software_pipeline_async_stages", [0])
    # END exercise 8.7


def occupancy(used: Resources, threads: int, arch: str) -> float:
    """The share of a multiprocessor's threads that are resident while it runs this kernel: 0 to 1.

    threads: per block. As many blocks are resident as each of four limits (LIMITS[arch]) allows: blocks; threads, in
    whole warps; registers, which a warp gets in portions of `register_portion`, so that as many warps fit as the
    multiprocessor's registers allow, rounded down to a multiple of `warp_portion`; shared memory, which a block gets in
    portions of `shared_portion`, `shared_reserved` included.
    """
    # BEGIN exercise 8.8 (about 10 lines): each limit gives a number of blocks; the smallest holds
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
    """Of tiles with what their kernels take on `arch`, the one that loads the least, if its kernel is sound.

    Sound: nothing is spilled, and at least one block fits (threads, registers, shared memory). Among equals the one
    with the higher occupancy. Raises ValueError if none is sound.
    """

    # BEGIN exercise 8.9 (about 10 lines): what disqualifies, and how much a tile loads for one element of D
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
    """The matmul of one row, A (1, k), with its bias: a block of one warp computes one element of D (1, n).

    Lane t of the 32 adds the products of vectors t, t + 32, t + 64, ... of 16 bytes, with up to eight of them in
    flight at a time; then the lanes add their sums. k is a multiple of 32 such vectors, else ValueError. Chapter 6's
    primitive refuses here: lanes share the sum, so the bias has no init.
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
        # BEGIN exercise 8.10 (about 20 lines): own sums, the sum over the lanes, the bias once
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
    """A tensor intrinsic that TVM does not have: sums[i, j] = bias[j], a fragment that starts from 16 biases.

    Returns (desc, impl), each taking bias (16,) in global memory and sums (16, 16) of scope wmma.SUM_SCOPE, both
    float32. impl calls the device function `start_from_row` by T.cuda.func_call, which brings its text along,
    wmma.START_FROM_ROW: a load of a tile whose rows lie 0 elements apart, so that all 16 are the same 16 numbers.
    """

    @T.prim_func(s_tir=True)
    def desc(bias: T.handle, sums: T.handle) -> None:
        C = T.match_buffer(bias, (16,), "float32", align=64, offset_factor=1, scope="global")
        S = wmma.tile(sums, "float32", wmma.SUM_SCOPE)
        # BEGIN exercise 8.11 (about 7 lines): what it computes, as the init block of the fused matmul says it
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
        # BEGIN exercise 8.11 (about 7 lines): call start_from_row with fragments, which of them, and the biases
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
    """Which kernel is to compute this linear layer on `target`, a CUDA target: one of four names.

    * "decode" where there is one row (m = 1) and k is a multiple of 32 vectors of 16 bytes: `decode_matmul`;
    * "tensor_cores" where the architecture has them for `dtype` (float16 from sm_70, bfloat16 from sm_80) and the
      sizes are multiples of WarpTile's: `tensor_core_matmul`, fused;
    * "dlight" where only TVM's rule, as MatmulOnTensorCores, reaches tensor cores, and for that the bias must NOT be
      fused before: float16; m, n and k each above 64; sm_70 or later. It pads, so the sizes need not fit;
    * "registers" for the rest: `shared_matmul`, fused.
    """
    # BEGIN exercise 8.12 (about 12 lines): which is the first that holds? target.attrs["arch"] is like "sm_90a"
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
    """(how near a kernel is to the machine's limit, from 0 to 1; what limits it, "memory" or "arithmetic").

    seconds: measured. operations: of arithmetic; moved: bytes that must move at least. rate and bandwidth: operations
    and bytes a second that the machine reaches, measured too. Raises ValueError for a time below the limit by more than
    5 %: then a measurement is wrong.
    """
    # BEGIN exercise 8.13 (about 7 lines): two lower bounds of the time; the larger one holds
    by_memory, by_arithmetic = moved / bandwidth, operations / rate
    limit = max(by_memory, by_arithmetic)
    if seconds < limit / 1.05:
        raise ValueError(
            f"{seconds:.3g} s is less than the machine needs, {limit:.3g} s: one of the measurements is wrong."
        )
    return min(limit / seconds, 1.0), "memory" if by_memory >= by_arithmetic else "arithmetic"
    # END exercise 8.13
