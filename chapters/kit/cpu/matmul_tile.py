"""Which part of x times w transposed a schedule computes at a time: what fits a target's registers and caches.

The sums of one tile stay in vector registers while the reduction runs. The kernel's shape and the target's registers
decide how many rows and columns a tile has. Only the two sizes of the part of w that is kept in a cache are constants
chosen for one machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.target import Target

from chapters.kit.cpu.nt_matmul import product_of, weight_shape
from chapters.kit.cpu.vector_registers import vector_registers

MOST_COLUMNS = 8  # each reads along another row of w; more of them are prefetched less well
BLOCK_N, BLOCK_K = 128, 1024  # a block of w: 512 KiB in float32, which a second-level cache holds
PADDING = 32  # three vectors by as many columns are worth one row in this many: a load serves more multiply-adds
NARROW = 32  # block_n where w has no blocks: its sums are copied out while a first-level cache holds them
SPARE = 2  # registers for elements of w: one is multiplied while the next is loaded
SIDE_BY_SIDE = 4  # rows of w, at most, that decode reads at a time: their sums are independent


@dataclass(frozen=True)
class Tile:
    """How an NT_matmul (w, x, out) is cut.

    row_axis: the dimension of x that holds its rows. lanes: elements in a vector register. vectors * columns: the
    registers of sums, each for `lanes` rows of x and one row of w. block_n, block_k: the block of w that is used for
    all rows of x before the next is read; columns divides block_n, which divides n; block_k divides k.
    """

    row_axis: int
    lanes: int
    vectors: int
    columns: int
    block_n: int
    block_k: int

    @property
    def rows(self) -> int:
        """Rows of x in a tile."""
        return self.vectors * self.lanes


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`, which is at least 1."""
    return max(d for d in range(1, min(number, limit) + 1) if number % d == 0)


def lanes_of(func: tirx.PrimFunc, target: Target) -> int:
    """How many of the kernel's sums one vector register of `target` holds."""
    return vector_registers(target).lanes(str(product_of(func).params[-1].dtype))


def row_extents(func: tirx.PrimFunc) -> list[int | None]:
    """The dimensions of the result without the last; None for a symbolic one."""
    rows = product_of(func).params[-1].shape[:-1]
    return [int(d) if isinstance(d, tirx.IntImm) else None for d in rows]


def has_few_rows(func: tirx.PrimFunc, target: Target) -> bool:
    """Whether registers of `target` hold sums of all rows of x with several rows of w: then w streams through once."""
    extents = row_extents(func)
    return None not in extents and prod(extents) <= vector_registers(target).count // SIDE_BY_SIDE


def rows_at_a_time(func: tirx.PrimFunc, target: Target) -> int:
    """How many rows of w are read at a time for all rows of x: a divisor of n, at most SIDE_BY_SIDE.

    Their sums, and a vector of each row, fit the registers of `target`. Raises ValueError as `weight_shape` does, and
    if x has more than a few rows.
    """
    n, _ = weight_shape(func)
    if not has_few_rows(func, target):
        raise ValueError(
            f"x has rows {list(product_of(func).params[-1].shape[:-1])}; the {vector_registers(target).count} vector "
            "registers of this target cannot hold the sums of so many: use the prefill schedule."
        )
    each = prod(row_extents(func)) + 1  # registers for a row of w: its sums, and its own elements
    return largest_divisor(n, min(SIDE_BY_SIDE, vector_registers(target).count // each))


def matmul_tile(func: tirx.PrimFunc, target: Target) -> Tile:
    """The tile for the NT_matmul `func`, whose x has at least two dimensions.

    If one tile has room for all rows, w is read once and needs no blocks. Raises ValueError as `weight_shape` does, and
    for an x of one dimension.
    """
    n, k = weight_shape(func)
    extents = row_extents(func)
    if not extents:
        raise ValueError("x has one dimension and no rows to tile: use the decode schedule.")
    row_axis = _choose_row_axis(extents)
    rows, lanes = extents[row_axis], lanes_of(func, target)
    registers = vector_registers(target).count
    needed = None if rows is None else max(1, -(-rows // lanes))  # vectors for all rows
    all_rows = needed is not None and needed <= registers // 8
    vectors = needed if all_rows else _choose_vectors(n, needed, registers)
    columns = _choose_columns(n, vectors, registers)
    block_n, block_k = NARROW if all_rows else BLOCK_N, largest_divisor(k, BLOCK_K)
    return Tile(
        row_axis=row_axis,
        lanes=lanes,
        vectors=vectors,
        columns=columns,
        block_n=columns * largest_divisor(n // columns, block_n // columns),
        # a k without a divisor of useful size, such as a prime, is not cut
        block_k=k if all_rows or block_k < lanes else block_k,
    )


def _choose_row_axis(extents: list[int | None]) -> int:
    """The dimension of x whose rows share a tile: the largest; the last that is not 1 if some size is symbolic."""
    if None in extents:
        return max(axis for axis, extent in enumerate(extents) if extent != 1)
    return max(range(len(extents)), key=lambda axis: (extents[axis], axis))


def _choose_columns(n: int, vectors: int, registers: int) -> int:
    """How many rows of w fit into the registers beside `vectors` vectors of x, as a divisor of n."""
    return largest_divisor(n, min(MOST_COLUMNS, (registers - vectors - SPARE) // vectors))


def _choose_vectors(n: int, needed: int | None, registers: int) -> int:
    """Vectors of rows in a tile of many rows: two, or three if that pays. needed: for all rows; None if symbolic."""
    if needed is None or _choose_columns(n, 3, registers) < _choose_columns(n, 2, registers):
        return 2
    two, three = (-(-needed // vectors) * vectors for vectors in (2, 3))  # with padding
    return 3 if three <= two + two // PADDING else 2
