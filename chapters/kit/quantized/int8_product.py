"""A product with a matrix of codes, its other operand rounded to 8 bits: sums of integers in groups, then floats.

Each row of x is cut into the groups of the matrix, and each group is stored as integers from -127 to 127 times a scale
of its own. The sum over a group is then exact in int32, and becomes a float once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as I

from chapters.kit.cpu.prefetch import CACHE_LINE, prefetch
from chapters.kit.quantized.blocks import Form
from chapters.kit.quantized.dequantize import int64, int64s
from chapters.kit.quantized.dot_products import DotProducts

LARGEST = 127  # of a rounded element of x: -128 is left out, so that a group is symmetric
NEGLIGIBLE = (
    1e-30  # a group whose largest element is smaller counts as zero: 127 / largest must be finite
)
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
        indices: list[Expr] = []
        for at in reversed(range(len(self.shape))):
            outer = self.shape[:at]
            alone = all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in outer)
            indices.insert(0, row if alone else row % self.shape[at])
            row = tirx.IntImm("int64", 0) if alone else row // self.shape[at]
        return indices


def int8_product(form: Form, n: int, k: int, x_shape: Sequence, dots: DotProducts) -> tirx.PrimFunc:
    """The kernel (codes, scales, x, result), without blocks inside its root.

    x: float32 of shape `x_shape`, which ends in k; result: the same with n in place of k. Dimensions before the last
    may be symbolic. The form's lanes are those of `dots`.
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
            stored = _Rounded(form, rows.count, groups)
            each = (I.serial if few else I.parallel)(int64(0), int64(rows.count))
            with each as row, I.serial(int64(0), int64(groups)) as group:
                _round(stored, form, x, rows.index(row), row, group)
            small = few and form.bytes_of(n, k) <= SERIAL_BYTES
            with (I.serial if small else I.parallel)(int64(0), int64(panels)) as panel:
                tiles = 1 if few else (rows.count + at_once - 1) // at_once
                with I.serial(int64(0), int64(tiles)) as tile:
                    at = [tile * at_once + one for one in range(at_once)]
                    _tile(form, dots, codes, scales, stored, panel, groups, at, rows, out)
    return builder.get()


class _Rounded:
    """The buffers of x in 8 bits: its integers, and for each group its scale and its total."""

    def __init__(self, form: Form, rows: Expr | int, groups: int):
        rows = int64(rows)
        per_group = [rows, int64(groups)]
        self.values = I.sblock_alloc_buffer([rows, int64(groups * form.group)], "int8")
        self.scales = I.sblock_alloc_buffer(per_group, "float32")
        # the sum of a group's elements: as a float for the minimum, or as the integer from which its sums start
        self.totals = I.sblock_alloc_buffer(per_group, "float32" if form.has_minimum else "int32")


def _round(stored: _Rounded, form: Form, x, index: list[Expr], row: Expr, group: Expr) -> None:
    """Store group `group` of a row of x in 8 bits."""
    size = form.group
    values = x[(*index, I.ramp(group * size, 1, size))]
    # without their signs, floats are in the order of their bits, and NaN is above infinity
    bits = T.reinterpret(f"int32x{size}", values) & T.broadcast(T.int32(0x7FFFFFFF), size)
    top = T.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.smax.v{size}i32", bits)
    largest = T.reinterpret("float32", top)
    scale = largest / T.float32(LARGEST)
    up = tirx.Select(largest < T.float32(NEGLIGIBLE), T.float32(0), T.float32(LARGEST) / largest)
    integers = T.cast(T.nearbyint(values * T.broadcast(up, size)), f"int32x{size}")
    total = T.call_llvm_pure_intrin("int32", f"llvm.vector.reduce.add.v{size}i32", integers)
    I.buffer_store(
        stored.values, T.cast(integers, f"int8x{size}"), [row, I.ramp(group * size, 1, size)]
    )
    I.buffer_store(stored.scales, scale, [row, group])
    # for the minimum, or what the sums start from: each code is `zero` more than its weight
    added = scale * T.cast(total, "float32") if form.has_minimum else total * T.int32(-form.zero)
    I.buffer_store(stored.totals, added, [row, group])


def _tile(form, dots, codes, scales, stored, panel, groups, at, rows, out) -> None:
    """The results of one panel of the matrix for the rows of x numbered `at`; those beyond the last are not stored."""
    lanes = form.lanes
    every, zero = I.ramp(int64(0), 1, lanes), T.broadcast(T.float32(0), lanes)
    sums = I.alloc_buffer([len(at), lanes], "float32", layout=None)
    exact = rows.known and rows.count == len(at)
    known = at if exact else [tirx.min(row, int64(rows.count) - 1) for row in at]
    for one in range(len(at)):
        I.buffer_store(sums, zero, [one, every])
    with I.serial(int64(0), int64(groups)) as group:
        if exact:  # few rows: with many, the codes are in a cache when the next rows need them
            _fetch(form, codes, scales, panel, group + AHEAD)
        scale, *minimum = (
            T.cast(scales[panel, group, kind, every], f"float32x{lanes}")
            for kind in range(1 + form.has_minimum)
        )
        for one, row in enumerate(known):
            exact_sums = T.cast(
                _group_sums(form, dots, codes, stored, panel, group, row), f"float32x{lanes}"
            )
            step = T.broadcast(stored.scales[row, group], lanes)
            new = sums[one, every] + exact_sums * (scale * step)
            if form.has_minimum:
                new = new + minimum[0] * T.broadcast(stored.totals[row, group], lanes)
            I.buffer_store(sums, new, [one, every])
    for one, row in enumerate(at):
        index = [*rows.index(row), I.ramp(panel * lanes, 1, lanes)]
        if exact:
            I.buffer_store(out, sums[one, every], index)
            continue
        with I.If(row < int64(rows.count)), I.Then():
            I.buffer_store(out, sums[one, every], index)


def _fetch(form: Form, codes, scales, panel: Expr, group: Expr) -> None:
    """Ask for a group that is needed soon. Beyond the last group that is what follows in memory."""
    prefetch(scales[panel, group, 0, 0])
    words = CACHE_LINE // (4 * form.lanes) or 1
    for word in range(0, form.group * form.bits // 32, words):
        prefetch(codes[panel, group, word, 0])


def _group_sums(form, dots, codes, stored, panel, group, row) -> Expr:
    """The sums of one group in int32, one per lane, less `zero` times the elements of x if the form has no minimum."""
    lanes, half = form.lanes, form.group // 2
    start = T.broadcast(T.int32(0) if form.has_minimum else stored.totals[row, group], lanes)
    every = I.ramp(int64(0), 1, lanes)

    def steps(first: int) -> Expr:  # four elements of x as one word
        return T.reinterpret("int32", stored.values[row, I.ramp(group * form.group + first, 1, 4)])

    words = [codes[panel, group, word, every] for word in range(form.group * form.bits // 32)]
    if form.bits == 8:
        return dots.add(start, [(word, steps(4 * q)) for q, word in enumerate(words)], 8)
    mask = T.broadcast(T.int32(0x0F0F0F0F), lanes)
    four = T.broadcast(T.int32(4), lanes)
    low = [(word & mask, steps(4 * q)) for q, word in enumerate(words)]
    high = [((word >> four) & mask, steps(half + 4 * q)) for q, word in enumerate(words)]
    return dots.add(start, [*low, *high], 4)
