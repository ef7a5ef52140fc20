"""The fused linear layer, written with PTX's instructions for tensor cores: `mma.sync`, `ldmatrix` and `cp.async`.

`wmma.py` hides which lane of a warp holds which element of a fragment. PTX documents it (PTX ISA, "Matrix fragments for
mma.m16n8k16 with floating point type"), so here the sums are ordinary registers, and starting them from the bias is an
ordinary load. For one `mma.sync`, d (16, 8) = a (16, 16) @ b (16, 8) + c, lane l holds with g = l // 4 and t = l % 4

    a: rows g and g + 8, columns 2t, 2t + 1, 2t + 8, 2t + 9     b: the same rows of k, column g
    c, d: row g, columns 2t and 2t + 1; row g + 8, columns 2t and 2t + 1

We choose which column of the layer is "column c" of the j-th such product. Four products make 32 columns, and

    column c of product j  is  column 8 (c // 2) + 2 j + c % 2  of the 32,

so that lane l holds columns 8t to 8t + 7: eight biases are two loads, eight results are one store of 16 bytes. To get
this order, the rows of w are permuted while they are copied to shared memory (`permute_row`), which costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T

from chapters.kit.gpu.layer_with_epilogue import LinearLayer, identity, linear_layer
from chapters.kit.gpu.limits import ITEM_BYTES, WARP
from chapters.kit.ir.parse_alone import parse_alone

PTX_TYPES = {"float16": "f16", "bfloat16": "bf16"}
PIECE = 8  # elements of 2 bytes in the 16 bytes that ldmatrix and cp.async take at once
FULL = 128  # blocks that keep a GPU busy: data-centre GPUs have 108 to 148 multiprocessors
# Of a block, at most, on sm_80; consumer GPUs have 99 KiB, later data-centre GPUs more.
SHARED_BYTES = 163 * 1024
COPY, LDMATRIX = "cp.async.cg.shared.global", "ldmatrix.sync.aligned.m8n8.x4.shared.b16"


@dataclass(frozen=True)
class MmaTile:
    """How the layer is cut: a block of threads computes (block_m, block_n) of the result, a warp (warp_m, warp_n).

    stages: how many blocks of block_k columns of x and w shared memory holds: one in use, the others in flight.
    """

    block_m: int
    block_n: int
    block_k: int
    warp_m: int
    warp_n: int
    stages: int

    @property
    def threads(self) -> int:
        return self.block_m // self.warp_m * (self.block_n // self.warp_n) * WARP

    @property
    def shared_bytes(self) -> int:
        return 2 * self.stages * (self.block_m + self.block_n) * self.block_k

    @property
    def pieces(self) -> int:
        """Pieces of 16 bytes in a row in shared memory."""
        return self.block_k // PIECE

    @property
    def copied_rows(self) -> int:
        """Rows of an operand that all threads together copy at a time."""
        return self.threads // self.pieces

    @property
    def fragments(self) -> tuple[int, int]:
        """Tiles of 16 rows of a warp, and its groups of four products, which are 32 columns."""
        return self.warp_m // 16, self.warp_n // 32

    def check(self) -> None:
        """Raise ValueError where the threads cannot share the work evenly, or fewer than 3 stages are asked for."""
        if not (self._warps_fit() and self._copies_fit()):
            raise ValueError(
                f"{self} cannot be used: warps have multiples of 16 × 32 elements and divide the block evenly, block_k "
                "is 32 or 64, all threads, 1024 at most, copy equally much of each operand, and stages is 3 or more."
            )

    def _warps_fit(self) -> bool:
        if min(self.warp_m, self.warp_n) < 1 or self.warp_m % 16 or self.warp_n % 32:
            return False
        whole = self.block_m % self.warp_m == self.block_n % self.warp_n == 0
        return whole and 0 < self.threads <= 1024

    def _copies_fit(self) -> bool:
        if self.block_k not in (32, 64) or self.stages < 3:
            return False
        return self.block_m % self.copied_rows == self.block_n % self.copied_rows == 0


# from the tile that loads least to the tile that makes most blocks
TILES = (
    MmaTile(128, 256, 32, 64, 64, 4),
    MmaTile(128, 128, 32, 64, 64, 4),
    MmaTile(64, 128, 32, 32, 64, 4),
    MmaTile(64, 64, 32, 32, 32, 4),
)


def choose_tile(m: int, n: int, k: int, shared_bytes: int = SHARED_BYTES) -> MmaTile:
    """The tile that loads least of those that keep a GPU's multiprocessors busy; if none does, the smallest that fits.

    n and k must be multiples of the tile's, m need not. shared_bytes: what a block may ask for. Raises ValueError if no
    tile fits.
    """
    fitting = [tile for tile in TILES if tile.shared_bytes <= shared_bytes]
    possible = [tile for tile in fitting if n % tile.block_n == 0 and k % tile.block_k == 0]
    if min(m, n, k) < 1 or not possible:
        smallest = TILES[-1]
        raise ValueError(
            f"A layer of {m} × {n} × {k} cannot be computed by mma_matmul: n must be a multiple of {smallest.block_n} "
            f"and k of {smallest.block_k}, m at least 1; use another kernel, or pad the weight with zeros."
        )
    busy = [t for t in possible if math.ceil(m / t.block_m) * (n // t.block_n) >= FULL]
    return (busy or possible[-1:])[0]


def permute_row(row: Expr) -> Expr:
    """Which row of the block's part of w is copied to row `row`; of each 32, row 8 j + c is column c of product j."""
    return row // 32 * 32 + row % 8 // 2 * 8 + row // 8 % 4 * 2 + row % 2


def swizzle(row: Expr, piece: Expr, pieces: int) -> Expr:
    """The position of piece `piece` in a row of `pieces` (4 or 8) pieces of 16 bytes.

    It puts the same piece of eight neighbouring rows, which ldmatrix reads at once, into different banks.
    """
    return piece ^ (row // (PIECE // pieces) % pieces)


def mma_matmul(
    m: int,
    n: int,
    k: int,
    dtype: str,
    out_dtype: str = "float32",
    tile: MmaTile | None = None,
    after: Callable[[Expr], Expr] = identity,
) -> tirx.PrimFunc:
    """D = A @ B.T + C for A (m, k) and B (n, k) of `dtype`, C (n,) float32 and D (m, n) of `out_dtype`.

    dtype: "float16" or "bfloat16"; products are summed in float32. out_dtype: "float32" or `dtype`, rounded once.
    tile: by default that of `choose_tile`. The last rows may fill a block only in part. after: what each sum, a float32
    expression, becomes before it is rounded, such as its GELU. Raises ValueError for sizes, dtypes and tiles that it
    does not support.
    """
    if dtype not in PTX_TYPES or out_dtype not in ("float32", dtype):
        raise ValueError(
            f"mma_matmul multiplies float16 or bfloat16 into float32 or the same dtype, not {dtype} into {out_dtype}."
        )
    tile = tile or choose_tile(m, n, k)
    if m < 1 or n * k == 0:
        raise ValueError(f"A layer of {m} × {n} × {k} has a size that is no positive number.")
    layer = linear_layer(m, n, k, dtype, out_dtype, after)
    func = tirx.PrimFunc([layer.x, layer.w, layer.start.source, layer.out], mma_body(layer, tile))
    return func.with_attrs({"global_symbol": "main", "tirx.noalias": True})


def mma_body(layer: LinearLayer, tile: MmaTile) -> tirx.Stmt:
    """The body of a kernel that computes `layer`, whose number of rows may be symbolic.

    Raises ValueError for a tile that cannot be used, or that does not divide n and k; and for arrays of a known size
    whose indices do not fit 32 bits.
    """
    tile.check()
    m, n, k = layer.rows, layer.n, layer.k
    if n % tile.block_n or k % tile.block_k:
        raise ValueError(
            f"A layer of {m} × {n} × {k} is not whole in tiles of {tile.block_n} columns and {tile.block_k} steps; "
            "n and k must be multiples of the tile's, m may be any positive number."
        )
    layer.check_indices()
    return _kernel(_TiledLayer(layer, tile)).body


# --- the kernel, step by step ---------------------------------------------------------------------


class _TiledLayer(NamedTuple):
    """A layer, its tile, and how the steps of the kernel reach into its operands."""

    layer: LinearLayer
    tile: MmaTile

    def place(self, copies, slot, row, piece):
        """The address of a piece of a row in shared memory."""
        return copies.ptr_to([slot, row, swizzle(row, piece, self.tile.pieces) * PIECE])

    def start_copy(self, copies, slot, to, operand, row, step, piece):
        """Start the copy of a piece of a row of an operand, to row `to` of part `slot`."""
        source = operand.ptr_to([row, step * self.tile.block_k + piece * PIECE])
        return T.ptx[COPY](self.place(copies, slot, to, piece), source, 16)

    def load_start(self, bias, j, column):
        """Load what the sums of the eight columns from `column` on start from."""
        wide = 4 if self.layer.starts_from_load else 1
        for at in range(0, PIECE, wide):
            first = self.layer.first_total(column, at, wide)
            T.buffer_store(bias, first, [j, T.ramp(at, 1, wide) if wide > 1 else at])

    def views(self):
        """What `load_pieces` loads from: matrices for buffers with as many rows as the result, vectors as they are."""
        layer = self.layer
        sources = [(load, load.source) for load in layer.pieces]
        return [layer.matrix(b) if layer.is_own(load) else b for load, b in sources]

    def load_pieces(self, held, views, row, column):
        """Load, for the eight results from `column` on, what each of the layer's `pieces` loads, 16 bytes at a time."""
        for load, register, view in zip(self.layer.pieces, held, views, strict=True):
            first = [row] if self.layer.is_own(load) else load.indices[:-1]
            wide = elements_of_vector(str(load.source.dtype))
            for part in range(0, PIECE, wide):
                piece = view[(*first, self.layer.columns(column, part, wide))]
                T.buffer_store(register, piece, [T.ramp(part, 1, wide)])

    @property
    def kinds(self):
        """The dtypes of the registers for `load_pieces`."""
        return [str(load.source.dtype) for load in self.layer.pieces]

    def finish(self, total, row, column, e, held):
        """Result `e` of the eight from `column` on."""
        return self.layer.finish(total, row, column + e, [register[e] for register in held])

    def store(self, results, D, row, column):
        """Store eight neighbouring results, 16 bytes at a time."""
        wide = elements_of_vector(self.layer.out_dtype)
        for part in range(0, PIECE, wide):
            piece = results[T.ramp(part, 1, wide)]
            T.buffer_store(D, piece, [row, self.layer.columns(column, part, wide)])


def elements_of_vector(dtype: str) -> int:
    """How many of eight elements of `dtype` are loaded or stored at a time."""
    return min(PIECE, 16 // ITEM_BYTES[dtype])


class _Thread(NamedTuple):
    """A thread's work: its lane, the corners of its block and its warp, the row and piece that it copies."""

    lane: Expr
    first_row: Expr
    first_column: Expr
    warp_row: Expr
    warp_column: Expr
    copy_row: Expr
    copy_piece: Expr

    def column(self, group):
        """The first of the eight columns of a group of four products that the lane holds."""
        return self.first_column + self.warp_column + group * 32 + self.lane % 4 * 8


@T.inline
def _start_copies(work, A, As, Bs, at, slot, step):
    """Start the copies of one step's operands to part `slot` of shared memory."""
    for i in T.unroll(work.tile.block_m // work.tile.copied_rows):
        to = T.meta_var(i * work.tile.copied_rows + at.copy_row)
        # beyond the last row, copy the last row again: its results are not stored
        row = T.meta_var(T.min(at.first_row + to, work.layer.rows - 1))
        work.start_copy(As, slot, to, A, row, step, at.copy_piece)
    for i in T.unroll(work.tile.block_n // work.tile.copied_rows):
        to = T.meta_var(i * work.tile.copied_rows + at.copy_row)
        row = T.meta_var(at.first_column + permute_row(to))
        work.start_copy(Bs, slot, to, work.layer.w, row, step, at.copy_piece)


@T.inline
def _start_from_bias(work, sums, bias, at):
    """Load a lane's biases, and start each of its sums from the bias of its column."""
    for j in T.unroll(work.tile.fragments[1]):
        work.load_start(bias, j, at.column(j))
    for i, j, h, e in T.grid(*work.tile.fragments, 2, 8):
        sums[i, j, h, e] = bias[j, e]


@T.inline
def _load_fragments(work, a, b, As, Bs, at, half, slot, p):
    """Load the fragments of part `p` of a step, 16 columns, into half `half` of the registers a and b."""
    for i in T.unroll(work.tile.fragments[0]):
        row = T.meta_var(at.warp_row + i * 16 + at.lane % 16)
        T.ptx[LDMATRIX](
            *[a[half, i, e] for e in range(4)],
            work.place(As, slot, row, p * 2 + at.lane // 16),
        )
    for j, two in T.grid(work.tile.fragments[1], 2):
        row = T.meta_var(at.warp_column + j * 32 + two * 16 + at.lane // 16 * 8 + at.lane % 8)
        T.ptx[LDMATRIX](
            *[b[half, j, two * 2 + e // 2, e % 2] for e in range(4)],
            work.place(Bs, slot, row, p * 2 + at.lane // 8 % 2),
        )


@T.inline
def _multiply(work, sums, a, b, half):
    """Add the products of the fragments in half `half` of the registers."""
    for i, j, q in T.grid(*work.tile.fragments, 4):
        T.ptx[
            "mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32".format(PTX_TYPES[work.layer.dtype])
        ](
            *[sums[i, j, e // 2, 2 * q + e % 2] for e in range(4)],
            *[a[half, i, e] for e in range(4)],
            *[b[half, j, q, e] for e in range(2)],
            *[sums[i, j, e // 2, 2 * q + e % 2] for e in range(4)],
        )


@T.inline
def _store(work, sums, out, held, views, D, at):
    """Finish a lane's sums, and store the results whose row is in out, 16 bytes at a time."""
    for i, j, h in T.grid(*work.tile.fragments, 2):
        row: T.let = at.first_row + at.warp_row + i * 16 + h * 8 + at.lane // 4
        if row < work.layer.rows:
            work.load_pieces(held, views, row, at.column(j))
            for e in T.unroll(8):
                out[e] = work.finish(sums[i, j, h, e], row, at.column(j), e, held)
            work.store(out, D, row, at.column(j))


@T.inline
def _multiply_all_steps(work, A, As, Bs, a, b, sums, at):
    """The loop over k: while one part of a step is multiplied, the fragments of the next part are loaded."""
    stages = T.meta_var(work.tile.stages)
    steps = T.meta_var(work.layer.k // work.tile.block_k)
    inner = T.meta_var(work.tile.block_k // 16)
    T.ptx["cp.async.wait_group"](stages - 2)
    T.tvm_storage_sync("shared")
    _load_fragments(work, a, b, As, Bs, at, 0, 0, 0)
    for step in T.serial(steps):
        for p in T.unroll(inner):
            if p == inner - 1:
                # after this barrier the next step's copies have arrived, and this step's part of the pool is free
                T.ptx["cp.async.wait_group"](stages - 2)
                T.tvm_storage_sync("shared")
                _load_fragments(work, a, b, As, Bs, at, (p + 1) % 2, (step + 1) % stages, 0)
            else:
                _load_fragments(work, a, b, As, Bs, at, (p + 1) % 2, step % stages, p + 1)
            if p == 0:
                # copy into the part that the previous step used; commit an empty group too, since groups are counted
                ahead = T.meta_var(step + stages - 1)
                if ahead < steps:
                    _start_copies(work, A, As, Bs, at, ahead % stages, ahead)
                T.ptx["cp.async.commit_group"]()
            _multiply(work, sums, a, b, p % 2)


@parse_alone
def _kernel(work: _TiledLayer) -> tirx.PrimFunc:
    """A function without parameters: its body uses the layer's buffers."""
    layer, tile = work
    block_m, block_n, block_k, stages = tile.block_m, tile.block_n, tile.block_k, tile.stages
    warps_m, pieces, (tiles_m, groups_n) = block_m // tile.warp_m, tile.pieces, tile.fragments
    blocks_m, blocks_n = (layer.rows + block_m - 1) // block_m, layer.n // block_n
    # blocks along m that follow one another and so share rows of w
    side = math.gcd(blocks_m, 8) if isinstance(blocks_m, int) else blocks_m
    a_size, b_size = stages * block_m * block_k, stages * block_n * block_k
    shared = {"dtype": layer.dtype, "scope": "shared.dyn"}

    @T.prim_func(check_well_formed=False)
    def main():
        block = T.launch_thread("blockIdx.x", blocks_m * blocks_n)
        thread = T.launch_thread("threadIdx.x", tile.threads)
        A = layer.matrix(layer.x)
        D = layer.matrix(layer.out)
        views = T.meta_var(work.views())
        # one array, divided by hand: TVM would shorten two arrays to the elements whose indices it sees
        pool = T.alloc_buffer((a_size + b_size,), **shared)
        As = T.decl_buffer((stages, block_m, block_k), data=pool.data, **shared)
        Bs = T.decl_buffer((stages, block_n, block_k), data=pool.data, elem_offset=a_size, **shared)
        a = T.alloc_buffer((2, tiles_m, 4), "uint32", scope="local")
        b = T.alloc_buffer((2, groups_n, 4, 2), "uint32", scope="local")
        bias = T.alloc_buffer((groups_n, 8), "float32", scope="local")
        sums = T.alloc_buffer((tiles_m, groups_n, 2, 8), "float32", scope="local")
        out = T.alloc_buffer((8,), layer.out_dtype, scope="local")
        held = T.meta_var([T.alloc_buffer((8,), kind, scope="local") for kind in work.kinds])

        lane: T.let = thread % 32
        first_row: T.let = (block // (side * blocks_n) * side + block % side) * block_m
        first_column: T.let = block % (side * blocks_n) // side * block_n
        warp_row: T.let = thread // 32 % warps_m * tile.warp_m
        warp_column: T.let = thread // 32 // warps_m * tile.warp_n
        copy_row: T.let = thread // pieces
        copy_piece: T.let = thread % pieces
        at = T.meta_var(
            _Thread(lane, first_row, first_column, warp_row, warp_column, copy_row, copy_piece)
        )

        for step in T.unroll(stages - 1):
            if step < layer.k // block_k:
                _start_copies(work, A, As, Bs, at, step, step)
            T.ptx["cp.async.commit_group"]()
        _start_from_bias(work, sums, bias, at)  # while the first copies are in flight
        _multiply_all_steps(work, A, As, Bs, a, b, sums, at)
        _store(work, sums, out, held, views, D, at)

    return main
