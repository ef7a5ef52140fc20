"""A linear layer as the kernels for tensor cores and for few rows see it: what starts a sum, and what is made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.script import tirx as T
from tvm_ffi import structural_equal, structural_map

from chapters.kit.gpu.limits import ITEM_BYTES
from chapters.kit.ir.row_index import is_one, row_index
from chapters.kit.ir.tensor_ir import nodes, substitute, with_fresh_lets

LARGEST = 2**31  # elements of an array: indices have 32 bits


@dataclass(frozen=True)
class LinearLayer:
    """out[row, column] = value, of total = start + the sum over k of x[row, k] * w[column, k], in float32.

    x (…, k), w (n, k), out (…, n): buffers, w of constant size. `axes`: the variables that stand for an element's index
    in `start` and `value`, one per dimension of out; an axis of extent 1 occurs in neither. start: float32, made of
    constants and loads that depend on the column alone; None for zero. value: an expression of the dtype of out, made
    of `total`, a float32 variable, and of loads from other buffers.
    """

    x: Var
    w: Var
    out: Var
    axes: tuple[Var, ...]
    total: Var
    start: Expr | None
    value: Expr

    @property
    def n(self) -> int:
        return int(self.w.shape[0])

    @property
    def k(self) -> int:
        return int(self.w.shape[1])

    @property
    def dtype(self) -> str:
        return str(self.x.dtype)

    @property
    def out_dtype(self) -> str:
        return str(self.out.dtype)

    @property
    def rows(self) -> int | Expr:
        """How many rows x has: a number, or an int32 expression where that is known only when the kernel is called."""
        return _multiply_extents(self.x.shape[:-1])

    def check_indices(self) -> None:
        """Raise ValueError for an array of a known size whose indices do not fit 32 bits."""
        m, n, k = self.rows, self.n, self.k
        known = m if isinstance(m, int) else 1
        if max(known * k, n * k, known * n) >= LARGEST:
            raise ValueError(
                f"{m} × {n} × {k} has an array of 2**31 elements or more; split its rows."
            )

    def matrix(self, buffer: Var) -> Var:
        """x, out, or another buffer with their leading dimensions as a matrix, for use while a kernel is written.

        An index of three dimensions would be divided out of the row, and TVM would no longer see that pieces of
        16 bytes are aligned.
        """
        shape = [T.cast(self.rows, self.index_dtype), buffer.shape[-1]]
        return T.decl_buffer(shape, str(buffer.dtype), data=buffer.data)

    def at_row(self, row: Expr) -> list[Expr]:
        """The leading indices of `row`, a number of a row, in x and in out."""
        dims = []
        for extent in self.x.shape[:-1]:
            size = extent if is_one(extent) else _multiply_extents([extent])
            # TVM may find that a symbolic extent is 0 where the rows are few
            dims.append(size if isinstance(size, int | tirx.IntImm) else T.max(size, 1))
        return row_index(row, dims)

    @property
    def index_dtype(self) -> str:
        """The dtype of indices: TVM does not take vectors whose indices are cast to it."""
        return str(self.w.shape[0].ty.dtype)

    def columns(self, column: Expr, offset: int = 0, lanes: int = 1) -> Expr:
        """The index of `lanes` neighbouring columns, from `column + offset` on."""
        first = T.cast(column, self.index_dtype) + offset
        return first if lanes == 1 else T.ramp(first, 1, lanes)

    def first_total(self, column: Expr, offset: int = 0, lanes: int = 1) -> Expr:
        """What the sums of `lanes` neighbouring columns from `column + offset` on start from, in float32.

        lanes: more than 1 only if `starts_from_load`.
        """
        if self.start is None:
            return T.float32(0)
        index = self.columns(column, offset, lanes)
        if lanes > 1:
            return self.start.source[(*self.start.indices[:-1], index)]
        return with_fresh_lets(substitute(self.start, {self.axes[-1]: index}))

    @property
    def starts_from_load(self) -> bool:
        """Whether the sums start from one load each, of neighbouring elements of a float32 vector."""
        return isinstance(self.start, TensorLoad) and self._is_neighbours(self.start)

    @property
    def pieces(self) -> list[TensorLoad]:
        """The loads of `value` by which eight neighbouring columns load eight neighbouring elements, each load once."""
        found: list[TensorLoad] = []
        for load in nodes(self.value, TensorLoad):
            if self._is_neighbours(load) and not any(structural_equal(load, one) for one in found):
                found.append(load)
        return found

    def _is_neighbours(self, load: TensorLoad) -> bool:
        if not load.indices or str(load.source.dtype) not in ITEM_BYTES:
            return False
        *leading, last = load.indices
        whole = structural_equal(load.source.shape[-1], self.out.shape[-1])
        fixed = all(isinstance(index, tirx.IntImm) for index in leading)
        plain = last.same_as(self.axes[-1]) and (fixed or self.is_own(load))
        return plain and whole and is_compact(load.source)

    def is_own(self, load: TensorLoad) -> bool:
        """Whether a load reads the element of the result's own index, in a buffer of the result's shape."""
        shape = structural_equal(list(load.source.shape), list(self.out.shape))
        pairs = zip(load.indices, self.axes, self.out.shape, strict=True) if shape else ()
        return shape and all(i.same_as(a) or is_one(extent) for i, a, extent in pairs)

    def finish(self, total: Expr, row: Expr, column: Expr, loaded: Sequence[Expr] = ()) -> Expr:
        """What is stored at (row, column). loaded: what each of `pieces` has loaded, if that was done before."""
        where = zip(self.axes, [*self.at_row(row), column], strict=True)
        held = list(zip(self.pieces, loaded, strict=True)) if loaded else []

        def from_register(load: TensorLoad) -> Expr:
            return next((value for piece, value in held if structural_equal(piece, load)), load)

        value = structural_map(self.value, (TensorLoad, from_register))
        values = {
            self.total: total,
            **{axis: T.cast(index, str(axis.ty.dtype)) for axis, index in where},
        }
        return with_fresh_lets(substitute(value, values))


def is_compact(buffer: Var) -> bool:
    """Whether the elements of `buffer` lie one after the other, from its pointer on."""
    offset = buffer.ty.elem_offset
    return not buffer.ty.strides and isinstance(offset, tirx.IntImm) and int(offset) == 0


def _multiply_extents(extents: Sequence[Expr]) -> int | Expr:
    """The product as a number; as an int32 expression if a factor is symbolic."""
    if all(isinstance(extent, tirx.IntImm) for extent in extents):
        return math.prod(map(int, extents))
    symbolic = [extent for extent in extents if not is_one(extent)]
    return math.prod(
        (T.cast(extent, "int32") for extent in symbolic[1:]), start=T.cast(symbolic[0], "int32")
    )


def identity(total: Expr) -> Expr:
    """A sum as it is: what `after` does if the kernel has no epilogue."""
    return total


def linear_layer(
    m: int, n: int, k: int, dtype: str, out_dtype: str, after: Callable[[Expr], Expr] = identity
) -> LinearLayer:
    """The layer D = after(A @ B.T + C) for A (m, k), B (n, k) of `dtype`, C (n,) float32, D (m, n) of `out_dtype`."""
    kinds = {
        "A": ((m, k), dtype),
        "B": ((n, k), dtype),
        "C": ((n,), "float32"),
        "D": ((m, n), out_dtype),
    }
    a, b, c, d = (
        tirx.decl_buffer(shape, kind, name, layout=None) for name, (shape, kind) in kinds.items()
    )
    i, j, total = tirx.Var("i", "int32"), tirx.Var("j", "int32"), tirx.Var("total", "float32")
    return LinearLayer(a, b, d, (i, j), total, c[j], T.cast(after(total), out_dtype))
