"""The fused linear layer with Hopper's own instructions: wgmma, bulk copies, and sums that start from the bias.

    D[i, j] = C[j] + A[i, k] * B[j, k]        A (m, k) and B (n, k) of float16 or bfloat16, C (n,) float32, D (m, n)

* A **bulk copy** (`cp.async.bulk.tensor`) brings a whole tile. One thread asks for it, by coordinates; what the array
  is, and that zeros stand past its edges, says a *tensor map* that host code makes. The copy reports the bytes that
  arrived to an **mbarrier** in shared memory.
* A **wgmma** multiplies (64, 16) by (16, block_n). Four warps issue it together. It reads both operands from shared
  memory, where a *descriptor* says how rows lie; only its sums are registers. It runs on while its threads do.
* So nobody copies by hand: one warp asks for tiles, the **producer**; the others multiply, the **consumers**. A ring of
  stages lies between them, with two mbarriers each: `full` (the bytes are there) and `empty` (all have read them).
* Which thread holds which sum is documented. So the biases are loaded straight into the registers that the first wgmma
  adds to: fusing them costs no instruction in the loop over k, and no pass over D.

A block takes one tile after another (a persistent kernel): while its consumers store one, its producer is ahead with
the next. **No GPU has run this yet.** It is compiled, and executed by `hopper_on_cpu.hpp`, which says what that covers;
not covered are the time it takes, and whether the descriptors mean to a GPU what they mean to that file.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T

from chapters.toolkit.gpu.launches import ARCHITECTURE, PIPELINE
from chapters.toolkit.gpu.limits import WARP
from chapters.toolkit.gpu.mma import LARGEST, PTX_TYPES
from chapters.toolkit.gpu.wgmma_tile import (
    BARRIER_BYTES,
    BLOCK_K,
    GROUP,
    ITEM_BYTES,
    MULTIPROCESSORS,
    ROWS,
    STEP,
    WARPGROUP,
    WgmmaTile,
    best_tile,
)

ARCH = "sm_90a"  # wgmma is an instruction of this architecture alone, which the `a` says
SWIZZLE_128, PROMOTE_128 = (
    3,
    2,
)  # as the driver numbers swizzles, and what the second-level cache fetches
# Descriptors count in units of 16 bytes. The pattern of this swizzle repeats every 8 rows, and a row is 128 bytes.
UNIT = 16
EIGHT_ROWS = 8 * 128 // UNIT
UNUSED = 1  # the leading offset, which tiles as wide as their swizzle do not need
ALONG_K = STEP * ITEM_BYTES // UNIT
COPY = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"

# Two instructions that are empty, and of which the compiler knows only that they read and write a register. It moves
# no other use of a held sum to the other side; and biases at a place that is new in each turn are loaded in each turn.
# Else, where all tiles have the same columns, it would load them once, and keep 64 more registers all the time.
HOLD = """
__forceinline__ __device__ void hold_register(float& value) {
  asm volatile("" : "+f"(value) :: "memory");
}
"""
ANEW = """
__forceinline__ __device__ int anew(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
"""


def check_sizes(m: int, n: int, k: int, dtype: str, out_dtype: str) -> None:
    """Raise ValueError for a layer that is not served. Served are all m, and n and k of whole pieces of 16 bytes."""
    if dtype not in PTX_TYPES:
        raise ValueError(f"The operands are {dtype}; this kernel takes float16 or bfloat16.")
    if out_dtype not in ("float32", dtype):
        raise ValueError(f"The result is {out_dtype}; this kernel writes float32 or {dtype}.")
    if min(m, n, k) < 1 or n % 8 or k % 8:
        raise ValueError(
            f"The layer is {m} × {n} × {k}; n and k must be multiples of 8, since the rows of a bulk copy begin at "
            "multiples of 16 bytes: use another kernel, or pad the weight."
        )
    if m * n >= LARGEST:
        raise ValueError(
            f"The result has {m * n} elements, and this kernel counts them in 32 bits: give it fewer rows at a time."
        )


def wgmma_matmul(
    m: int,
    n: int,
    k: int,
    dtype: str = "bfloat16",
    out_dtype: str = "float32",
    tile: WgmmaTile | None = None,
    multiprocessors: int = MULTIPROCESSORS,
) -> tirx.PrimFunc:
    """D = A @ B.T + C for A (m, k), B (n, k) of `dtype`, C (n,) float32, D (m, n) of `out_dtype`; sums in float32.

    tile: best_tile's if none is given. multiprocessors: so many blocks are launched at most. The function's attributes
    name the passes that lower it and the architecture it is for, which HostProgram and call.py heed. Raises ValueError
    for sizes and dtypes that it does not serve.
    """
    check_sizes(m, n, k, dtype, out_dtype)
    tile = tile or best_tile(m, n, multiprocessors)
    block_m, block_n, stages = tile.block_m, tile.block_n, tile.stages
    rows, columns = tile.grid(m, n)
    blocks = min(rows * columns, multiprocessors)
    consuming = tile.consumers * WARPGROUP
    k_blocks = -(-k // BLOCK_K)
    sums = ROWS * block_n // WARPGROUP  # of a thread
    a_bytes, b_bytes = block_m * BLOCK_K * ITEM_BYTES, block_n * BLOCK_K * ITEM_BYTES
    barriers_at = stages * tile.stage_bytes
    multiply = (
        f"wgmma.mma_async.sync.aligned.m64n{block_n}k16.f32.{PTX_TYPES[dtype]}.{PTX_TYPES[dtype]}"
    )

    def turns(block):
        """How many tiles a block takes."""
        whole, left = divmod(rows * columns, blocks)
        return whole + tirx.Select(block < left, 1, 0) if left else whole

    def place(block, turn):
        """(first row, first column) of the tile that a block takes at this turn: down GROUP tiles, then right."""
        t = block + turn * blocks
        above = t // (GROUP * columns) * GROUP
        high = tirx.min(rows - above, GROUP)
        inside = t % (GROUP * columns)
        return (above + inside % high) * block_m, inside // high * block_n

    def inside(column):
        return tirx.const(True) if n % block_n == 0 else column < n

    @T.inline
    def describe(array, tensor_map, height, box_height):
        """Host code: sizes and boxes from the innermost, in elements; the pitch of rows in bytes."""
        T.evaluate(
            T.tensormap_encode_tiled(
                tensor_map,
                array.data,
                *(k, height),
                k * ITEM_BYTES,
                *(BLOCK_K, box_height),
                *(1, 1),
                descriptor_dtype=dtype,
                rank=2,
                swizzle=SWIZZLE_128,
                l2_promotion=PROMOTE_128,
            )
        )

    @T.inline
    def hold(own):
        for i in T.unroll(sums):
            T.cuda.func_call("hold_register", own[i], source_code=HOLD)

    @T.inline
    def start_from_bias(own, C, column):
        """Sums 4 j to 4 j + 3 of a thread: two neighbours in a row, and the same two columns 8 rows below."""
        pair: T.let[T.int32] = T.cuda.func_call(
            "anew", column // 2, source_code=ANEW, return_type="int32"
        )  # of columns: TVM sees that 2 * pair is even, and loads both at once
        for j in T.unroll(block_n // 8):
            if inside(column + j * 8):
                for v in T.vectorized(2):
                    own[j * 4 + v] = C[pair * 2 + j * 8 + v]
            else:
                for v in T.unroll(2):
                    own[j * 4 + v] = T.float32(0)
            for v in T.unroll(2):
                own[j * 4 + 2 + v] = own[j * 4 + v]
        hold(own)

    @T.inline
    def multiply_stage(own, desc, s):
        """Add the products of one stage. scale-d is True from the first on: what the sums hold is never thrown away."""
        T.ptx.wgmma.fence.sync.aligned()
        for p in T.unroll(BLOCK_K // STEP):
            T.ptx[multiply](
                *[own[i] for i in range(sums)],
                desc[0] + T.cast(s * (a_bytes // UNIT) + p * ALONG_K, "uint64"),
                desc[1] + T.cast(s * (b_bytes // UNIT) + p * ALONG_K, "uint64"),
                True,
                *(1, 1),
                *(0, 0),
            )
        T.ptx.wgmma.commit_group.sync.aligned()

    @T.inline
    def store(own, D, row, column):
        for half in T.unroll(2):
            if row + half * 8 < m:
                for j in T.unroll(block_n // 8):
                    if inside(column + j * 8):
                        for v in T.vectorized(2):
                            D[row + half * 8, column + j * 8 + v] = T.cast(
                                own[j * 4 + half * 2 + v], out_dtype
                            )

    @T.prim_func
    def main(
        A: T.Buffer((m, k), dtype),
        B: T.Buffer((n, k), dtype),
        C: T.Buffer((n,), "float32"),
        D: T.Buffer((m, n), out_dtype),
    ):
        T.func_attr({"global_symbol": "main", "tirx.noalias": True})
        T.func_attr({PIPELINE: "tirx", ARCHITECTURE: ARCH})
        a_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        describe(A, a_map, m, block_m)
        b_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        describe(B, b_map, n, block_n)

        T.device_entry()
        block = T.cta_id([blocks])
        thread = T.thread_id([tile.threads])
        # TVM wants one dynamic allocation; the parts are views of it
        pool = T.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        a_ring = T.decl_buffer(
            (stages, block_m, BLOCK_K), dtype, data=pool.data, scope="shared.dyn"
        )
        b_ring = T.decl_buffer(
            (stages, block_n, BLOCK_K),
            dtype,
            data=pool.data,
            byte_offset=stages * a_bytes,
            scope="shared.dyn",
        )
        full = T.decl_buffer(
            (stages,), "uint64", data=pool.data, byte_offset=barriers_at, scope="shared.dyn"
        )
        empty = T.decl_buffer(
            (stages,),
            "uint64",
            data=pool.data,
            byte_offset=barriers_at + stages * BARRIER_BYTES,
            scope="shared.dyn",
        )
        own = T.alloc_buffer((sums,), "float32", scope="local")
        desc = T.alloc_buffer((2,), "uint64", scope="local")

        if thread == 0:
            for s in T.unroll(stages):
                T.ptx.mbarrier.init.shared.b64(T.address_of(full[s]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(
                    T.address_of(empty[s]), T.uint32(consuming // WARP)
                )  # each warp answers for itself
            T.ptx.fence.proxy.async_.shared__cta()  # copies, which are no threads, know of them now
        T.cuda.cta_sync()

        if thread >= consuming:
            if thread == consuming:
                for turn in T.serial(turns(block), unroll=False):
                    corner = T.meta_var(place(block, turn))
                    for kb in T.serial(k_blocks, unroll=False):
                        step = T.meta_var(turn * k_blocks + kb)
                        s = T.meta_var(step % stages)
                        # once around the ring nobody has to have read: the phase before the first counts as over
                        T.cuda.mbarrier_wait(T.address_of(empty[s]), (step // stages + 1) % 2)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                            T.address_of(full[s]), T.uint32(a_bytes + b_bytes)
                        )
                        T.ptx[COPY](
                            T.address_of(a_ring[s, 0, 0]),
                            T.address_of(a_map),
                            *(kb * BLOCK_K, corner[0]),
                            T.address_of(full[s]),
                        )
                        T.ptx[COPY](
                            T.address_of(b_ring[s, 0, 0]),
                            T.address_of(b_map),
                            *(kb * BLOCK_K, corner[1]),
                            T.address_of(full[s]),
                        )
        else:
            lane = T.meta_var(thread % WARP)
            T.cuda.wgmma.encode_matrix_descriptor(
                T.address_of(desc[0]),
                T.address_of(a_ring[0, thread // WARPGROUP * ROWS, 0]),
                *(UNUSED, EIGHT_ROWS, SWIZZLE_128),
            )
            T.cuda.wgmma.encode_matrix_descriptor(
                T.address_of(desc[1]),
                T.address_of(b_ring[0, 0, 0]),
                *(UNUSED, EIGHT_ROWS, SWIZZLE_128),
            )
            for turn in T.serial(turns(block), unroll=False):
                corner = T.meta_var(place(block, turn))
                row = T.meta_var(corner[0] + thread // WARP * 16 + lane // 4)
                column = T.meta_var(corner[1] + lane % 4 * 2)
                start_from_bias(own, C, column)
                for kb in T.serial(k_blocks, unroll=False):
                    step = T.meta_var(turn * k_blocks + kb)
                    s = T.meta_var(step % stages)
                    T.cuda.mbarrier_wait(T.address_of(full[s]), step // stages % 2)
                    multiply_stage(own, desc, s)
                    # the products of the step before are done; those of this one run on
                    T.ptx.wgmma.wait_group.sync.aligned(1)
                    T.ptx.mbarrier.arrive.shared.b64(
                        T.address_of(empty[(step + stages - 1) % stages]),
                        T.uint32(1),
                        pred=lane == 0 and kb > 0,
                    )
                T.ptx.wgmma.wait_group.sync.aligned(0)
                T.ptx.mbarrier.arrive.shared.b64(
                    T.address_of(empty[(turn * k_blocks + k_blocks - 1) % stages]),
                    T.uint32(1),
                    pred=lane == 0,
                )
                hold(own)
                store(own, D, row, column)

    return main
