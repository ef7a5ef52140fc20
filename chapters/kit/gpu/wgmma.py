"""The fused linear layer with Hopper's own instructions: wgmma, bulk copies, and sums that start from the bias.

    D[i, j] = C[j] + A[i, k] * B[j, k]        A (m, k) and B (n, k) of float16 or bfloat16, C (n,) float32, D (m, n)

* A **bulk copy** (`cp.async.bulk.tensor`) copies a whole tile. One thread asks for it, by coordinates. A *tensor map*,
  which host code makes, describes the array; beyond its edges the copy writes zeros. The copy reports the bytes that
  have arrived to an **mbarrier** in shared memory.
* A **wgmma** multiplies (64, 16) by (16, block_n). Four warps issue it together. It reads both operands from shared
  memory, where a *descriptor* says how rows lie; only its sums are registers. It is asynchronous: its threads go on.
* So no thread copies data itself: one warp, the **producer**, asks for tiles; the others, the **consumers**, multiply.
  A ring of stages lies between them, with two mbarriers each: `full` (the bytes are there) and `empty` (all warps have
  read them).
* PTX documents which thread holds which sum. So the biases are loaded straight into the registers that the first wgmma
  adds to: fusing them costs no instruction in the loop over k, and no pass over D.
* A thread holds two of every eight columns, and storing two results at a time is slow. So the tensor map of B has five
  dimensions. It permutes the rows, as mma.py does: row 8 t + 2 j + v of each 32 is copied to row 8 j + 2 t + v. Then
  lane t of four holds columns 8 t to 8 t + 7, and loads their biases in two instructions and stores eight results of
  2 bytes in one. This needs whole groups of 32 rows; other layers keep two columns per thread.

A block computes one tile after another (a persistent kernel): while its consumers store one tile, its producer already
loads the next. The checks and tests execute it by `hopper_on_cpu.hpp`, which says what that covers. `bench 8` measures
it on a GPU, where its results are compared with float64 first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T

from chapters.kit.gpu.launches import ARCHITECTURE, PIPELINE
from chapters.kit.gpu.layer_with_epilogue import LARGEST, identity
from chapters.kit.gpu.limits import ITEM_BYTES, WARP
from chapters.kit.gpu.mma import PTX_TYPES
from chapters.kit.gpu.wgmma_tile import (
    BARRIER_BYTES,
    BLOCK_K,
    GROUP,
    MULTIPROCESSORS,
    OPERAND_BYTES,
    ROWS,
    STEP,
    WARPGROUP,
    WgmmaTile,
    best_tile,
)
from chapters.kit.ir.parse_alone import parse_alone

ARCH = "sm_90a"  # only this architecture has wgmma, as the `a` says
# the driver's numbers for a swizzle, and for the size of a fetch by the second-level cache
SWIZZLE_128, PROMOTE_128 = 3, 2
# Descriptors count in units of 16 bytes. The pattern of this swizzle repeats every 8 rows, and a row is 128 bytes.
UNIT = 16
EIGHT_ROWS = 8 * 128 // UNIT
UNUSED = 1  # the leading offset, which tiles as wide as their swizzle do not need
ALONG_K = STEP * OPERAND_BYTES // UNIT
COPY = "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes"
DEALT = 32  # rows of B that are dealt out, so that each of four lanes holds eight neighbouring sums
WIDE = 4  # floats of a load, at most

# Two functions with an empty instruction, of which the compiler knows only that it reads and writes a register. The
# compiler moves no other use of a sum across `hold_register`. `anew` hides that the index of a bias may be the same for
# every tile: if it is, the compiler would load the biases once and keep 64 more registers all the time.
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
    """Raise ValueError for a layer that is not supported: n and k must be multiples of 8, m may be any from 1 on."""
    if dtype not in PTX_TYPES:
        raise ValueError(f"The operands are {dtype}; this kernel takes float16 or bfloat16.")
    if out_dtype not in ("float32", dtype):
        raise ValueError(f"The result is {out_dtype}; this kernel writes float32 or {dtype}.")
    if min(m, n, k) < 1 or n % 8 or k % 8:
        raise ValueError(
            f"The layer is {m} × {n} × {k}; n and k must be multiples of 8, since the rows of a bulk copy begin at "
            "multiples of 16 bytes, and m at least 1: use another kernel, or pad the weight."
        )
    if m * n >= LARGEST:
        raise ValueError(
            f"The result has {m * n} elements, and this kernel's indices have 32 bits: give it fewer rows at a time."
        )


def wgmma_matmul(
    m: int,
    n: int,
    k: int,
    dtype: str = "bfloat16",
    out_dtype: str = "float32",
    tile: WgmmaTile | None = None,
    multiprocessors: int = MULTIPROCESSORS,
    after: Callable[[Expr], Expr] = identity,
) -> tirx.PrimFunc:
    """D = A @ B.T + C for A (m, k), B (n, k) of `dtype`, C (n,) float32, D (m, n) of `out_dtype`; sums in float32.

    tile: by default `best_tile`. multiprocessors: at most so many blocks are launched. after: what each sum, a float32
    expression, becomes before it is rounded, such as its GELU. The function's attributes name the passes that lower it
    and the architecture that it is for; HostProgram and call.py read them. Raises ValueError for sizes and dtypes that
    it does not support.
    """
    check_sizes(m, n, k, dtype, out_dtype)
    tile = tile or best_tile(m, n, multiprocessors)
    return _kernel(_WgmmaLayer(m, n, k, dtype, out_dtype, tile, multiprocessors, after))


# --- the kernel, step by step ---------------------------------------------------------------------


class _WgmmaLayer(NamedTuple):
    """A layer and its tile, with the counts that the steps of the kernel need."""

    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    tile: WgmmaTile
    multiprocessors: int
    after: Callable[[Expr], Expr] = identity

    @property
    def dealt(self) -> bool:
        """Whether the rows of B are dealt out: they must be whole groups of DEALT."""
        return self.n % DEALT == self.tile.block_n % DEALT == 0

    @property
    def neighbours(self) -> int:
        """Neighbouring sums that a lane holds in each group of columns."""
        return DEALT // 4 if self.dealt else 2

    @property
    def group(self) -> int:
        """Columns that four lanes hold together."""
        return 4 * self.neighbours

    @property
    def blocks(self) -> int:
        """Blocks of threads that are launched."""
        rows, columns = self.tile.grid(self.m, self.n)
        return min(rows * columns, self.multiprocessors)

    @property
    def k_blocks(self) -> int:
        """Steps of a tile, each of BLOCK_K columns of A and B."""
        return -(-self.k // BLOCK_K)

    @property
    def consuming(self) -> int:
        """Threads that multiply."""
        return self.tile.consumers * WARPGROUP

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return ROWS * self.tile.block_n // WARPGROUP

    @property
    def operand_bytes(self) -> tuple[int, int]:
        """Bytes of A and of B in one stage."""
        row_bytes = BLOCK_K * OPERAND_BYTES
        return self.tile.block_m * row_bytes, self.tile.block_n * row_bytes

    def turns(self, block):
        """How many tiles a block computes."""
        rows, columns = self.tile.grid(self.m, self.n)
        whole, left = divmod(rows * columns, self.blocks)
        return whole + tirx.Select(block < left, 1, 0) if left else whole

    def corner(self, block, turn):
        """(first row, first column) of a block's tile number `turn`: down GROUP tiles, then right."""
        rows, columns = self.tile.grid(self.m, self.n)
        t = block + turn * self.blocks
        group = min(rows, GROUP)
        above = t // (group * columns) * group
        # dividing by a number that the compiler does not know takes the producer longer than asking for a tile
        high = group if rows % group == 0 else tirx.min(rows - above, group)
        inside = t % (group * columns)
        return (above + inside % high) * self.tile.block_m, inside // high * self.tile.block_n

    def finish(self, total):
        """The result that is stored for a sum."""
        return T.cast(self.after(total), self.out_dtype)

    def inside(self, column):
        """Whether D has this column; the constant True if no tile reaches beyond the last one."""
        return tirx.const(True) if self.n % self.tile.block_n == 0 else column < self.n


class _Shared(NamedTuple):
    """A block's shared memory: the ring of stages with parts of A and B, and two mbarriers for each stage."""

    a_ring: tirx.Buffer
    b_ring: tirx.Buffer
    full: tirx.Buffer
    empty: tirx.Buffer


def _encode_tensor_map(layer: _WgmmaLayer, array, tensor_map, heights, pitches, boxes):
    """Encode a tensor map in host code. Its rows of k elements are counted in dimensions, innermost first.

    heights, boxes: rows in each dimension, and of a copy. pitches: how many rows of the array a step in each takes.
    """
    row_bytes = layer.k * OPERAND_BYTES
    rank = 1 + len(heights)
    return T.tensormap_encode_tiled(
        *(tensor_map, array.data, layer.k, *heights, *(rows * row_bytes for rows in pitches)),
        *(BLOCK_K, *boxes, *[1] * rank),
        descriptor_dtype=layer.dtype,
        rank=rank,
        swizzle=SWIZZLE_128,
        l2_promotion=PROMOTE_128,
    )


def _encode_map_of_b(layer: _WgmmaLayer, B, tensor_map):
    n, block_n = layer.n, layer.tile.block_n
    if not layer.dealt:
        return _encode_tensor_map(layer, B, tensor_map, [n], [1], [block_n])
    # two neighbours, four lanes, four pairs of a lane, and groups
    dealt = [2, 4, 4]
    return _encode_tensor_map(
        layer, B, tensor_map, [*dealt, n // DEALT], [1, 8, 2, DEALT], [*dealt, block_n // DEALT]
    )


def _arrive(barrier, **when):
    """Arrive once at an mbarrier; with `pred` in `when`, only the threads for which it holds arrive."""
    return T.ptx.mbarrier.arrive.shared.b64(T.address_of(barrier), T.uint32(1), **when)


@T.inline
def _make_barriers(layer, shared, thread):
    """Let one thread make the mbarriers. One arrival fills a stage; an arrival of each consuming warp empties it."""
    if thread == 0:
        for s in T.unroll(layer.tile.stages):
            T.ptx.mbarrier.init.shared.b64(T.address_of(shared.full[s]), T.uint32(1))
            # one arrival per consuming warp
            T.ptx.mbarrier.init.shared.b64(
                T.address_of(shared.empty[s]), T.uint32(layer.consuming // WARP)
            )
        T.ptx.fence.proxy.async_.shared__cta()  # makes the mbarriers visible to copies
    T.cuda.cta_sync()


def _copy(to, tensor_map, k, rows, barrier):
    """Ask for the tile of an operand that begins at this k and row; the copy reports its bytes to `barrier`.

    rows: where the tile begins in each dimension of rows of the tensor map.
    """
    copy = T.ptx[COPY.format(1 + len(rows))]
    return copy(T.address_of(to), T.address_of(tensor_map), k, *rows, T.address_of(barrier))


def _rows_of_b(layer: _WgmmaLayer, column):
    """The `rows` of `_copy` for the part of B that begins at this row, which is a column of D."""
    return [0, 0, 0, column // DEALT] if layer.dealt else [column]


@T.inline
def _produce(layer, shared, a_map, b_map, block):
    """The producer: ask for the parts of A and B of every step of every tile, as soon as their stage is empty."""
    for turn in T.serial(layer.turns(block), unroll=False):
        corner = T.meta_var(layer.corner(block, turn))
        for kb in T.serial(layer.k_blocks, unroll=False):
            step = T.meta_var(turn * layer.k_blocks + kb)
            s = T.meta_var(step % layer.tile.stages)
            # the first time around the ring this wait ends at once: the phase before the first counts as over
            over = T.meta_var((step // layer.tile.stages + 1) % 2)
            T.cuda.mbarrier_wait(T.address_of(shared.empty[s]), over)
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                T.address_of(shared.full[s]), T.uint32(sum(layer.operand_bytes))
            )
            rows_of_b = T.meta_var(_rows_of_b(layer, corner[1]))
            _copy(shared.a_ring[s, 0, 0], a_map, kb * BLOCK_K, [corner[0]], shared.full[s])
            _copy(shared.b_ring[s, 0, 0], b_map, kb * BLOCK_K, rows_of_b, shared.full[s])


@T.inline
def _hold(layer, totals):
    for i in T.unroll(layer.sums):
        T.cuda.func_call("hold_register", totals[i], source_code=HOLD)


def _sum_index(layer, group, half, e):
    """Which of a thread's sums is the e-th of its neighbours in a group of columns; half: 8 rows below."""
    return (group * layer.neighbours // 2 + e // 2) * 4 + half * 2 + e % 2


@T.inline
def _start_from_bias(layer, totals, piece, C, column):
    """Set the sums of a thread, as many neighbours at a time as it holds, and those 8 rows below."""
    neighbours, group = T.meta_var(layer.neighbours), T.meta_var(layer.group)
    wide = T.meta_var(min(neighbours, WIDE))
    # of the first piece: TVM sees that `neighbours` times it is a multiple of `wide`, and loads so many at once
    number: T.let[T.int32] = T.cuda.func_call(
        "anew", column // neighbours, source_code=ANEW, return_type="int32"
    )
    for g in T.unroll(layer.tile.block_n // group):
        if layer.inside(column + g * group):
            for part in T.unroll(neighbours // wide):
                for v in T.vectorized(wide):
                    piece[part * wide + v] = C[number * neighbours + g * group + part * wide + v]
        else:
            for e in T.unroll(neighbours):
                piece[e] = T.float32(0)
        for half, e in T.grid(2, neighbours):
            totals[_sum_index(layer, g, half, e)] = piece[e]
    _hold(layer, totals)


def _describe_part(layer: _WgmmaLayer, desc, operand: int, s, p):
    """The descriptor of part `p`, STEP columns, of an operand (0 for A, 1 for B) in stage `s`."""
    stage = layer.operand_bytes[operand] // UNIT
    return desc[operand] + T.cast(s * stage + p * ALONG_K, "uint64")


@T.inline
def _multiply_stage(layer, totals, desc, s):
    """Add the products of one stage. scale-d is True for the first product too, which keeps the biases in the sums."""
    name = T.meta_var(PTX_TYPES[layer.dtype])
    T.ptx.wgmma.fence.sync.aligned()
    for p in T.unroll(BLOCK_K // STEP):
        T.ptx[f"wgmma.mma_async.sync.aligned.m64n{layer.tile.block_n}k16.f32.{name}.{name}"](
            *[totals[i] for i in range(layer.sums)],
            *[_describe_part(layer, desc, operand, s, p) for operand in (0, 1)],
            *(True, 1, 1, 0, 0),
        )
    T.ptx.wgmma.commit_group.sync.aligned()


@T.inline
def _multiply_tile(layer, totals, desc, shared, turn, lane):
    """All steps of a tile: the products of one step run while those of the next are issued."""
    stages = T.meta_var(layer.tile.stages)
    k_blocks = T.meta_var(layer.k_blocks)
    for kb in T.serial(k_blocks, unroll=False):
        step = T.meta_var(turn * k_blocks + kb)
        s = T.meta_var(step % stages)
        T.cuda.mbarrier_wait(T.address_of(shared.full[s]), step // stages % 2)
        _multiply_stage(layer, totals, desc, s)
        # wait until the products of the previous step are done; those of this step run on
        T.ptx.wgmma.wait_group.sync.aligned(1)
        _arrive(shared.empty[(step + stages - 1) % stages], pred=lane == 0 and kb > 0)
    T.ptx.wgmma.wait_group.sync.aligned(0)
    _arrive(shared.empty[(turn * k_blocks + k_blocks - 1) % stages], pred=lane == 0)


@T.inline
def _store(layer, totals, rounded, D, row, column):
    """Finish and round a thread's sums, and store those inside D, up to 16 bytes at a time."""
    neighbours, group = T.meta_var(layer.neighbours), T.meta_var(layer.group)
    wide = T.meta_var(min(neighbours, 16 // ITEM_BYTES[layer.out_dtype]))
    for half in T.unroll(2):
        if row + half * 8 < layer.m:
            for g in T.unroll(layer.tile.block_n // group):
                if layer.inside(column + g * group):
                    for e in T.unroll(neighbours):
                        rounded[e] = layer.finish(totals[_sum_index(layer, g, half, e)])
                    for part in T.unroll(neighbours // wide):
                        for v in T.vectorized(wide):
                            at = T.meta_var(part * wide + v)
                            D[row + half * 8, column + g * group + at] = rounded[at]


@T.inline
def _describe(desc, number, first):
    """Make the descriptor of the tiles that begin at the element `first`."""
    T.cuda.wgmma.encode_matrix_descriptor(
        T.address_of(desc[number]), T.address_of(first), UNUSED, EIGHT_ROWS, SWIZZLE_128
    )


@T.inline
def _consume(layer, totals, piece, rounded, desc, shared, C, D, block, thread):
    """A consumer: for every tile, start its sums from the biases, add all products, store."""
    lane = T.meta_var(thread % WARP)
    _describe(desc, 0, shared.a_ring[0, thread // WARPGROUP * ROWS, 0])
    _describe(desc, 1, shared.b_ring[0, 0, 0])
    for turn in T.serial(layer.turns(block), unroll=False):
        corner = T.meta_var(layer.corner(block, turn))
        row = T.meta_var(corner[0] + thread // WARP * 16 + lane // 4)
        column = T.meta_var(corner[1] + lane % 4 * layer.neighbours)
        _start_from_bias(layer, totals, piece, C, column)
        _multiply_tile(layer, totals, desc, shared, turn, lane)
        _hold(layer, totals)
        _store(layer, totals, rounded, D, row, column)


@parse_alone
def _kernel(layer: _WgmmaLayer) -> tirx.PrimFunc:
    m, n, k, dtype, out_dtype, tile, *_ = layer
    stages = tile.stages
    # bytes of the pool before the ring of B, the mbarriers `full`, and the mbarriers `empty`
    b_at, full_at = stages * layer.operand_bytes[0], stages * tile.stage_bytes
    empty_at = full_at + stages * BARRIER_BYTES

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
        T.evaluate(_encode_tensor_map(layer, A, a_map, [m], [1], [tile.block_m]))
        b_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.evaluate(_encode_map_of_b(layer, B, b_map))

        T.device_entry()
        block = T.cta_id([layer.blocks])
        thread = T.thread_id([tile.threads])
        # TVM allows one dynamic allocation; the parts are views of it
        pool = T.alloc_buffer((tile.shared_bytes,), "uint8", scope="shared.dyn", align=1024)
        part = T.meta_var({"data": pool.data, "scope": "shared.dyn"})
        a_ring = T.decl_buffer((stages, tile.block_m, BLOCK_K), dtype, **part)
        b_ring = T.decl_buffer((stages, tile.block_n, BLOCK_K), dtype, byte_offset=b_at, **part)
        full = T.decl_buffer((stages,), "uint64", byte_offset=full_at, **part)
        empty = T.decl_buffer((stages,), "uint64", byte_offset=empty_at, **part)
        shared = T.meta_var(_Shared(a_ring, b_ring, full, empty))
        totals = T.alloc_buffer((layer.sums,), "float32", scope="local")
        desc = T.alloc_buffer((2,), "uint64", scope="local")
        piece = T.alloc_buffer((layer.neighbours,), "float32", scope="local")
        rounded = T.alloc_buffer((layer.neighbours,), out_dtype, scope="local")

        _make_barriers(layer, shared, thread)
        if thread >= layer.consuming:
            if thread == layer.consuming:
                _produce(layer, shared, a_map, b_map, block)
        else:
            _consume(layer, totals, piece, rounded, desc, shared, C, D, block, thread)

    return main
