"""NT_matmul in bfloat16 on AMX, the matrix unit of some x86 processors, written with its tile instructions.

AMX multiplies tiles: 16 rows of 64 bytes. One instruction, TDPBF16PS, multiplies a tile of 16 rows of 32 bfloat16 by a
tile in which pairs of rows are interleaved, and adds the product to a tile of 16 x 16 float32 sums. The rows of w are
contiguous along the reduction, so w already consists of such tiles; only x, which is small, is packed in pairs. The
sums come out as (column, row), and are transposed while they are copied into the result.

Linux gives a process the tile registers only when it asks for them: `runs_here`.
"""

from __future__ import annotations

from typing import NamedTuple

import tvm
from tvm import tirx
from tvm.script import tirx as T

from chapters.kit.cpu import amx
from chapters.kit.ir.parse_alone import parse_alone

ROWS = 16  # of a tile
PAIR = 32  # rows of x and of w that four tiles of sums take at a time
PACKED_STRIDE = 2 * PAIR  # bytes from row to row of a packed tile
SUMS_STRIDE = 4 * PAIR  # bytes from row to row of the sums
LARGEST_BLOCK = 128  # rows of w whose sums are kept until they are transposed
FEW = 4  # pairs of tiles of x, at most, that a second-level cache holds beside w: 1 MiB for 4096 bfloat16 a row


def runs_here() -> bool:
    """Whether this processor has bfloat16 tiles; asks Linux for the tile registers, for this process."""
    return amx.runs_here("amx_bf16")


def amx_matmul(m: int, n: int, k: int) -> tirx.PrimFunc:
    """(w, x, configuration, out): out (m, n) float32 = x (m, k) times w (n, k) transposed, both bfloat16.

    w and x are given as uint16 of the same bits. m, n and k are multiples of 32; ValueError if not. The
    configuration is `amx.configuration()`. Run it after `runs_here()`.
    """
    if m % PAIR or n % PAIR or k % PAIR:
        raise ValueError(f"({m}, {n}, {k}) are not all multiples of {PAIR}.")
    # Many rows are taken a few at a time: reading w again costs less than reading all of x for each block of w.
    pairs = next((some for some in (FEW, FEW - 1) if m // PAIR % some == 0), m // PAIR)
    # The sums of few rows are transposed at once, while a cache holds them.
    largest = next(size for size in (LARGEST_BLOCK, 64, PAIR) if n % size == 0)
    return _kernel(_Cut(m, n, k, pairs, PAIR if pairs <= FEW else largest))


def build_amx_matmul(m: int, n: int, k: int):
    """`amx_matmul`, compiled for `amx.target()`."""
    return tvm.compile(amx_matmul(m, n, k), target=amx.target())["NT_matmul"]


# --- the kernel, step by step ---------------------------------------------------------------------


class _Cut(NamedTuple):
    """The sizes of a product, and how it is cut.

    pairs: pairs of tiles of x that are multiplied by a block of w at a time. block: the rows of w in a block.
    """

    m: int
    n: int
    k: int
    pairs: int
    block: int

    @property
    def tiles(self) -> int:
        """Pairs of tiles in a block of w."""
        return self.block // PAIR

    @property
    def w_stride(self) -> int:
        """Bytes from row to row of w."""
        return 2 * self.k


@T.inline
def _pack(cut, x, packed):
    """Copy x into tiles: a row of a tile holds two steps of the reduction, for one row of x after the other."""
    for row_tile in T.parallel(cut.m // ROWS):
        for pair in T.serial(cut.k // 2):
            for row in T.vectorized(ROWS):
                for half in T.unroll(2):
                    with T.sblock("pack"):
                        i = T.axis.spatial(cut.m, row_tile * ROWS + row)
                        j = T.axis.spatial(cut.k, pair * 2 + half)
                        tile = T.meta_var((i // PAIR, j // PAIR, (i // ROWS) % 2))
                        packed[(*tile, (j % PAIR) // 2, (i % ROWS) * 2 + j % 2)] = x[i, j]


@T.inline
def _multiply_pairs(cut, w, packed, sums, b, j, x_pair):
    """Multiply pair `j` of block `b` of w by a pair of x: the sums stay in tiles until all of k is added."""
    w_pair = T.meta_var(b * cut.tiles + j)
    w_row = T.meta_var(b * cut.block + j * PAIR)
    amx.zero_sums()
    for step in T.serial(cut.k // PAIR):
        # operands are loaded in the order in which the products need them
        amx.load_tile(4, w[w_row, step * PAIR], cut.w_stride)
        amx.load_tile(6, packed[x_pair, step, 0, 0, 0], PACKED_STRIDE)
        amx.load_tile(7, packed[x_pair, step, 1, 0, 0], PACKED_STRIDE)
        amx.load_tile(5, w[w_row + ROWS, step * PAIR], cut.w_stride)
        amx.add_products(amx.multiply_bf16)
    amx.store_tile(0, sums[w_pair, x_pair, 0, 0], SUMS_STRIDE)
    amx.store_tile(1, sums[w_pair, x_pair, 0, ROWS], SUMS_STRIDE)
    amx.store_tile(2, sums[w_pair, x_pair, ROWS, 0], SUMS_STRIDE)
    amx.store_tile(3, sums[w_pair, x_pair, ROWS, ROWS], SUMS_STRIDE)


@T.inline
def _add_x(packed, sums_tile, x_pair, half, step):
    """Add the product of the tile of w that is loaded and one tile of x."""
    amx.load_tile(5, packed[x_pair, step, half, 0, 0], PACKED_STRIDE)
    amx.multiply_bf16(sums_tile, 4, 5)


@T.inline
def _multiply_four(cut, w, packed, sums, b, j, x_pair, half):
    """Multiply one tile of w by four of x: w, whose rows lie far apart, is loaded once for 64 rows."""
    w_pair = T.meta_var(b * cut.tiles + j)
    amx.zero_sums()
    for step in T.serial(cut.k // PAIR):
        amx.load_tile(4, w[b * cut.block + j * PAIR + half * ROWS, step * PAIR], cut.w_stride)
        _add_x(packed, 0, x_pair, 0, step)
        _add_x(packed, 1, x_pair, 1, step)
        _add_x(packed, 2, x_pair + 1, 0, step)
        _add_x(packed, 3, x_pair + 1, 1, step)
    amx.store_tile(0, sums[w_pair, x_pair, half * ROWS, 0], SUMS_STRIDE)
    amx.store_tile(1, sums[w_pair, x_pair, half * ROWS, ROWS], SUMS_STRIDE)
    amx.store_tile(2, sums[w_pair, x_pair + 1, half * ROWS, 0], SUMS_STRIDE)
    amx.store_tile(3, sums[w_pair, x_pair + 1, half * ROWS, ROWS], SUMS_STRIDE)


@T.inline
def _multiply_block(cut, w, packed, sums, b, x_first):
    """Multiply block `b` of w by `cut.pairs` pairs of tiles of x, from `x_first` on."""
    if cut.pairs % 2 == 0:
        for j in T.serial(cut.tiles):
            for half in T.serial(2):
                for i in T.serial(cut.pairs // 2):
                    _multiply_four(cut, w, packed, sums, b, j, x_first + i * 2, half)
    else:
        for i in T.serial(cut.pairs):
            for j in T.serial(cut.tiles):
                _multiply_pairs(cut, w, packed, sums, b, j, x_first + i)


@T.inline
def _transpose(cut, sums, out, part, block_n):
    """Copy the sums of one block of w and one part of x, (column, row), into their places in the result."""
    for i in T.serial(cut.pairs * PAIR):
        for j_part in T.serial(cut.block // ROWS):
            for j_lane in T.vectorized(ROWS):
                with T.sblock("transpose"):
                    r = T.axis.spatial(cut.m, part * cut.pairs * PAIR + i)
                    c = T.axis.spatial(cut.n, block_n * cut.block + j_part * ROWS + j_lane)
                    out[r, c] = sums[c // PAIR, r // PAIR, c % PAIR, r % PAIR]


@parse_alone
def _kernel(cut: _Cut) -> tirx.PrimFunc:
    m, n, k, pairs, block = cut
    tiles, parts, steps = cut.tiles, m // (pairs * PAIR), k // PAIR

    @T.prim_func(s_tir=True)
    def NT_matmul(
        w: T.Buffer((n, k), "uint16"),
        x: T.Buffer((m, k), "uint16"),
        configuration: T.Buffer((64,), "uint8"),
        out: T.Buffer((m, n), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        packed = T.sblock_alloc_buffer((m // PAIR, steps, 2, ROWS, PAIR), "uint16")
        sums = T.sblock_alloc_buffer((n // PAIR, m // PAIR, PAIR, PAIR), "float32")
        _pack(cut, x, packed)
        for part in T.serial(parts):
            for block_n in T.parallel(n // block):
                with T.sblock("product"):
                    b = T.axis.spatial(n // block, block_n)
                    first = T.axis.spatial(parts, part)
                    x_first = T.meta_var(first * pairs)
                    w_first = T.meta_var(b * tiles)
                    T.reads(
                        packed[x_first : x_first + pairs, 0:steps, 0:2, 0:ROWS, 0:PAIR],
                        w[b * block : b * block + block, 0:k],
                        configuration[0:64],
                    )
                    T.writes(
                        sums[w_first : w_first + tiles, x_first : x_first + pairs, 0:PAIR, 0:PAIR]
                    )
                    amx.configure_tiles(configuration[0])
                    _multiply_block(cut, w, packed, sums, b, x_first)
                _transpose(cut, sums, out, part, block_n)

    return NT_matmul
