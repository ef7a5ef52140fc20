"""A product with a matrix of codes, its other operand rounded to 8 bits: what surrounds the loop that multiplies.

Each row of x is cut into the groups of the matrix, and each group is stored as integers from -127 to 127 times a scale
of its own. Then the results are computed tile by tile. What computes a tile, chapter 11's `multiply_codes`, is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as I

from chapters.kit.cpu.cache_control import CACHE_LINE, prefetch
from chapters.kit.ir.row_index import row_index
from chapters.kit.quantized.dequantize import int64, int64s
from chapters.kit.quantized.dot_products import DotProducts
from chapters.kit.quantized.weight_blocks import PackedLayout

LARGEST = 127  # of a rounded element of x: -128 is left out, so that a group is symmetric
# a group whose largest element is smaller counts as zero: 127 / largest must be finite
NEGLIGIBLE = 1e-30
AHEAD = 24  # groups: how far in advance codes are fetched from memory, where each is used once
SERIAL_BYTES = 1 << 16  # of a matrix that one thread multiplies before it could wake another


class Rows:
    """The rows of an array of shape (…, k), numbered from 0, however many dimensions they have."""

    def __init__(self, shape: Sequence):
        self.shape = shape[:-1]
        self.known = all(isinstance(extent, tirx.IntImm) for extent in self.shape)
        counts = [int(extent) if self.known else extent for extent in self.shape]
        self.count = prod(counts) if self.known else prod(counts[1:], start=counts[0])

    def index(self, row: Expr) -> list[Expr]:
        """The indices of a row, one per dimension."""
        return row_index(row, self.shape)


@dataclass(frozen=True)
class Tile:
    """The results of one panel, `form.lanes` rows of a matrix that lie side by side, for a few rows of x in 8 bits.

    In a group, x is about steps * integers. The buffers, by their dimensions, as TVM's builder reads and writes them:

    codes: int32 (panel, group, word, lane), scales: (panel, group, kind, lane), as `form` stores the matrix; kind 0 is
    a group's scale and kind 1 its minimum. integers: int8 (row of x, column). steps: float32 (row of x, group).
    totals: (row of x, group); with a minimum, float32: the step times the sum of the group's integers. Without, int32:
    what the sum over the group starts from, so that a code counts from `form.zero`. sums: float32 (len(rows), lane),
    where the results go; they hold anything before.
    """

    form: PackedLayout
    dots: DotProducts  # how the processor adds up products of bytes
    codes: tirx.Buffer
    scales: tirx.Buffer
    integers: tirx.Buffer
    steps: tirx.Buffer
    totals: tirx.Buffer
    sums: tirx.Buffer
    panel: Expr  # the panel's number
    groups: Expr  # their number in a row of the matrix, int64 like all indices
    rows: Sequence[Expr]  # the numbers of the rows of x; one number may occur twice
    once: bool  # whether each code is read only once, as in a decode step

    @property
    def every(self) -> Expr:
        """All lanes of a buffer, as an index: a load is then a vector, and a store takes one."""
        return I.ramp(int64(0), 1, self.form.lanes)

    def fetch(self, group: Expr) -> None:
        """Ask the memory for the codes and scales that are needed some groups after `group`, if they come from there.

        Beyond the last group that is what follows in memory.
        """
        if not self.once:  # with many rows, the codes are in a cache when the next rows need them
            return
        later, form = group + AHEAD, self.form
        prefetch(self.scales[self.panel, later, 0, 0])
        words = CACHE_LINE // (4 * form.lanes) or 1
        for word in range(0, form.words, words):
            prefetch(self.codes[self.panel, later, word, 0])


Multiply = Callable[[Tile], None]  # writes the loops that fill `sums` of a tile, with TVM's builder


def int8_product(
    form: PackedLayout, n: int, k: int, x_shape: Sequence, dots: DotProducts, multiply: Multiply
) -> tirx.PrimFunc:
    """The kernel (codes, scales, x, result), without blocks inside its root.

    multiply: fills the sums of a tile. x: float32 of shape `x_shape`, which ends in k; result: the same with n in place
    of k. Dimensions before the last may be symbolic. The form's lanes are those of `dots`.
    """
    rows = Rows(x_shape)
    few = rows.known and rows.count <= dots.rows
    groups, panels, at_once = k // form.group, n // form.lanes, rows.count if few else dots.rows
    with IRBuilder() as builder, I.prim_func(s_tir=True, private=True):
        I.func_attr({"tirx.noalias": True})
        codes, scales = (
            I.arg(name, I.Buffer(int64s(shape), dtype))
            for (shape, dtype), name in zip(form.shapes(n, k), ("codes", "scales"), strict=True)
        )
        x = I.arg("x", I.Buffer(x_shape, "float32"))
        out = I.arg("NT_matmul", I.Buffer([*x_shape[:-1], int64(n)], "float32"))
        with I.sblock("root"):
            per_group = int64s([rows.count, groups])
            stored = (
                I.sblock_alloc_buffer(int64s([rows.count, k]), "int8"),
                I.sblock_alloc_buffer(per_group, "float32"),
                # a float for the minimum, or the integer from which the sums over a group start
                I.sblock_alloc_buffer(per_group, "float32" if form.has_minimum else "int32"),
            )
            each = (I.serial if few else I.parallel)(int64(0), int64(rows.count))
            with each as row, I.serial(int64(0), int64(groups)) as group:
                _quantize(stored, form, x, rows.index(row), row, group)
            small = few and form.bytes_of(n, k) <= SERIAL_BYTES
            with (I.serial if small else I.parallel)(int64(0), int64(panels)) as panel:
                tiles = 1 if few else (rows.count + at_once - 1) // at_once
                with I.serial(int64(0), int64(tiles)) as tile:
                    at = [tile * at_once + one for one in range(at_once)]
                    sums = I.alloc_buffer([at_once, form.lanes], "float32", layout=None)
                    # rows beyond the last are computed as the last one, and not stored
                    known = at if few else [tirx.min(row, int64(rows.count) - 1) for row in at]
                    buffers = codes, scales, *stored, sums
                    multiply(Tile(form, dots, *buffers, panel, int64(groups), known, few))
                    for one, row in enumerate(at):
                        _store_rows(out, rows, row, panel, sums[one, I.ramp(0, 1, form.lanes)], few)
    return builder.get()


def _quantize(
    stored: Sequence, form: PackedLayout, x, index: list[Expr], row: Expr, group: Expr
) -> None:
    """Store group `group` of a row of x in 8 bits. stored: the buffers of a Tile's integers, steps and totals."""
    (integers_of_x, steps, totals), size = stored, form.group
    values = x[(*index, I.ramp(group * size, 1, size))]
    # without their signs, floats are in the order of their bits, and NaN is above infinity
    bits = T.reinterpret(f"int32x{size}", values) & T.broadcast(T.int32(0x7FFFFFFF), size)
    top = T.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.smax.v{size}i32", bits)
    largest = T.reinterpret("float32", top)
    scale = largest / T.float32(LARGEST)
    up = tirx.Select(largest < T.float32(NEGLIGIBLE), T.float32(0), T.float32(LARGEST) / largest)
    integers = T.cast(T.nearbyint(values * T.broadcast(up, size)), f"int32x{size}")
    total = T.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.add.v{size}i32", integers)
    place = [row, I.ramp(group * size, 1, size)]
    I.buffer_store(integers_of_x, T.cast(integers, f"int8x{size}"), place)
    I.buffer_store(steps, scale, [row, group])
    # for the minimum, or what the sums start from: each code is `zero` more than its weight
    added = scale * T.cast(total, "float32") if form.has_minimum else total * T.int32(-form.zero)
    I.buffer_store(totals, added, [row, group])


def _store_rows(out, rows: Rows, row: Expr, panel: Expr, value: Expr, few: bool) -> None:
    """Store the results of a panel for a row of x, unless that is beyond the last."""
    lanes = value.ty.dtype.lanes
    index = [*rows.index(row), I.ramp(panel * lanes, 1, lanes)]
    if few:
        I.buffer_store(out, value, index)
        return
    with I.If(row < int64(rows.count)), I.Then():
        I.buffer_store(out, value, index)
