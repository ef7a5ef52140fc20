"""Runs a small PrimFunc in Python, one store after another, and notes what each store reads and writes.

Pictures are drawn from these stores. It follows loops, blocks, their inits and predicates; it compiles nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from tvm import tirx
from tvm.ir import TensorLoad, Var
from tvm.s_tir import SBlockRealize

_TWO = {
    **{tirx.Add: operator.add, tirx.Sub: operator.sub, tirx.Mul: operator.mul},
    **{tirx.Max: max, tirx.Min: min},
    **{tirx.FloorDiv: operator.floordiv, tirx.FloorMod: operator.mod},
    **{tirx.EQ: operator.eq, tirx.LT: operator.lt, tirx.LE: operator.le},
    **{tirx.And: lambda a, b: a and b},
}
_SIGNS = {tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "·"}


@dataclass(frozen=True)
class Access:
    """One element that is read or written. scope: of its buffer, such as "global" or "local"; value: the element's."""

    buffer: str
    scope: str
    index: tuple[int, ...]
    value: int | float

    @property
    def name(self) -> str:
        """The element as in TVMScript, such as `A[0, 1]`."""
        return f"{self.buffer}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True)
class Store:
    """One store of a block. moment: its number; the lanes of a vectorized loop store at the same moment.

    loops: the values of the loops around it, by name. text: what is stored, with the names of the elements that are
    loaded.
    """

    block: str
    moment: int
    loops: Mapping[str, int]
    wrote: Access
    reads: tuple[Access, ...]
    text: str


@dataclass
class _Run:
    """The state of a run: the arrays by buffer, the values of variables and of loops, and the vectorized loops."""

    arrays: dict[str, np.ndarray]
    values: dict[Var, int] = field(default_factory=dict)
    loops: dict[Var, int] = field(default_factory=dict)
    lanes: set[Var] = field(default_factory=set)
    moments: dict[tuple, int] = field(default_factory=dict)

    def statement(self, stmt: tirx.Stmt) -> Iterator[Store]:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                yield from self.statement(part)
        elif isinstance(stmt, tirx.For):
            yield from self.loop(stmt)
        elif isinstance(stmt, SBlockRealize):
            yield from self.block(stmt)
        else:
            raise ValueError(f"A picture cannot run a {type(stmt).__name__}.")

    def loop(self, loop: tirx.For) -> Iterator[Store]:
        low = self.number(loop.min)
        if loop.kind == tirx.ForKind.VECTORIZED:
            self.lanes.add(loop.loop_var)
        for n in range(low, low + self.number(loop.extent)):
            self.values[loop.loop_var] = self.loops[loop.loop_var] = n
            yield from self.statement(loop.body)
        del self.loops[loop.loop_var]

    def block(self, realize: SBlockRealize) -> Iterator[Store]:
        block = realize.block
        if not self.number(realize.predicate):
            return
        first = True
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
            self.values[axis.var] = self.number(value)
            summed = axis.iter_type == tirx.IterVar.CommReduce
            first &= not summed or self.values[axis.var] == self.number(axis.dom.min)
        for buffer in block.alloc_buffers:
            self.arrays[buffer.name] = np.zeros([int(n) for n in buffer.shape], str(buffer.dtype))
        if not isinstance(block.body, tirx.BufferStore):
            yield from self.statement(block.body)
            return
        if block.init is not None and first:
            yield self.store(block.name_hint, block.init, True)
        yield self.store(block.name_hint, block.body, False)

    def store(self, block: str, stmt: tirx.BufferStore, starts: bool) -> Store:
        # the lanes of a vectorized loop share two moments: first their inits, then the rest
        place = tuple((var, n) for var, n in self.loops.items() if var not in self.lanes)
        moment = self.moments.setdefault((block, starts, place), len(self.moments))
        reads: list[Access] = []
        value = self.number(stmt.value, reads)
        index = tuple(self.number(i) for i in stmt.indices)
        name = stmt.buffer.name
        self.arrays[name][index] = value
        wrote = Access(name, stmt.buffer.scope(), index, value)
        text = _format_expr(stmt.value, (access.name for access in reads))
        loops = {var.name: n for var, n in self.loops.items()}
        return Store(block, moment, loops, wrote, tuple(reads), text)

    def number(self, expr, reads: list[Access] | None = None) -> int | float:
        """The value of an expression; what it loads is added to `reads`, in order from the left."""
        if isinstance(expr, (tirx.IntImm, tirx.FloatImm)):
            return expr.value
        if isinstance(expr, Var):
            return self.values[expr]
        if isinstance(expr, tirx.Cast):
            return self.number(expr.value, reads)
        if isinstance(expr, TensorLoad):
            index = tuple(self.number(i) for i in expr.indices)
            value = self.arrays[expr.source.name][index].item()
            if reads is not None:
                reads.append(Access(expr.source.name, expr.source.scope(), index, value))
            return value
        if type(expr) in _TWO:
            return _TWO[type(expr)](self.number(expr.a, reads), self.number(expr.b, reads))
        raise ValueError(f"A picture cannot compute a {type(expr).__name__}: {expr}")


def _format_expr(expr, loaded: Iterator[str]) -> str:
    """An expression as text; each load, from the left, is the next of `loaded`."""
    if isinstance(expr, TensorLoad):
        return next(loaded)
    if isinstance(expr, tirx.Cast):
        return _format_expr(expr.value, loaded)
    if type(expr) in _SIGNS:
        a, b = (_format_operand(expr, side, loaded) for side in (expr.a, expr.b))
        return f"{a} {_SIGNS[type(expr)]} {b}"
    if isinstance(expr, (tirx.Max, tirx.Min)):
        a, b = (_format_expr(side, loaded) for side in (expr.a, expr.b))
        return f"{type(expr).__name__.lower()}({a}, {b})"
    return str(expr)


def _format_operand(parent, expr, loaded: Iterator[str]) -> str:
    text = _format_expr(expr, loaded)
    nested = type(expr) in (tirx.Add, tirx.Sub) and not isinstance(parent, tirx.Add)
    return f"({text})" if nested else text


def make_ones(func: tirx.PrimFunc) -> dict[str, np.ndarray]:
    """An array of ones for each argument of `func`, by name; its shapes must be constant."""
    return {p.name: np.ones([int(n) for n in p.shape], str(p.dtype)) for p in func.params}


def execute(func: tirx.PrimFunc, arrays: Mapping[str, np.ndarray]) -> list[Store]:
    """The stores of `func` in the order in which they happen. arrays: one per argument, by name; not changed.

    The loops must have constant extents, and each block that stores must have one store.
    """
    run = _Run({name: array.copy() for name, array in arrays.items()})
    return list(run.statement(func.body))


def group_by_moment(stores: list[Store]) -> list[list[Store]]:
    """The stores by moment: one per list, or the lanes of a vectorized loop together."""
    found: dict[int, list[Store]] = {}
    for store in stores:
        found.setdefault(store.moment, []).append(store)
    return list(found.values())
