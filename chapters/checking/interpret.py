"""Runs a PrimFunc in Python, one point after another: a second opinion, independent of TVM's code generator.

The function is translated to Python text. Every access is checked against the buffer's shape, and every allocated
buffer holds poison until it is written. Numbers are Python's, so integers are exact; a store converts to the dtype.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlockRealize

POISON = 77777

_INFIX = {
    **{"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "FloorDiv": "//", "FloorMod": "%"},
    **{"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="},
    **{"And": "and", "Or": "or"},
}


class OutOfBounds(Exception):
    """A load or a store outside its buffer."""


def _at(array: np.ndarray, *index: int) -> tuple[int, ...]:
    if any(not 0 <= i < n for i, n in zip(index, array.shape, strict=True)):
        raise OutOfBounds(f"an access at {list(index)} of a buffer of shape {array.shape}")
    return index


def _load(array: np.ndarray, *index: int):
    return array[_at(array, *index)].item()


def _store(array: np.ndarray, value, *index: int) -> None:
    array[_at(array, *index)] = value


def _cast(dtype: str, value):
    return np.asarray(value).astype(dtype).item()


class _Writer:
    """Collects Python lines and gives each TIR variable a unique name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[tvm.ir.Var, str] = {}

    def name(self, var: tvm.ir.Var) -> str:
        return self.names.setdefault(var, f"v{len(self.names)}")

    def expr(self, node) -> str:
        kind = type(node).__name__
        if isinstance(node, tvm.ir.Var):
            return self.name(node)
        if isinstance(node, (tirx.IntImm, tirx.FloatImm)):
            return repr(node.value)
        if isinstance(node, TensorLoad):
            return f"_load({', '.join([self.name(node.source), *map(self.expr, node.indices)])})"
        if kind in _INFIX:
            return f"({self.expr(node.a)} {_INFIX[kind]} {self.expr(node.b)})"
        if kind in ("Min", "Max"):
            return f"{kind.lower()}({self.expr(node.a)}, {self.expr(node.b)})"
        if kind == "Cast":
            return f"_cast({str(node.ty.dtype)!r}, {self.expr(node.value)})"
        if kind == "Select":
            return f"({self.expr(node.true_value)} if {self.expr(node.condition)} else {self.expr(node.false_value)})"
        if isinstance(node, Call) and node.op.name.endswith("if_then_else"):
            condition, yes, no = map(self.expr, node.args)
            return f"({yes} if {condition} else {no})"
        if isinstance(node, Call) and node.op.name == "tirx.exp":
            return f"math.exp({self.expr(node.args[0])})"
        raise NotImplementedError(f"{kind}: {node}")

    def put(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def stmt(self, node, depth: int) -> None:
        if isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                self.stmt(part, depth)
        elif isinstance(node, tirx.For):
            low = self.expr(node.min)
            loop = f"range({low}, {low} + {self.expr(node.extent)})"
            self.put(depth, f"for {self.name(node.loop_var)} in {loop}:")
            self.stmt(node.body, depth + 1)
        elif isinstance(node, tirx.IfThenElse):
            self.put(depth, f"if {self.expr(node.condition)}:")
            self.stmt(node.then_case, depth + 1)
            if node.else_case is not None:
                self.put(depth, "else:")
                self.stmt(node.else_case, depth + 1)
        elif isinstance(node, tirx.BufferStore):
            parts = [self.name(node.buffer), *map(self.expr, (node.value, *node.indices))]
            self.put(depth, f"_store({', '.join(parts)})")
        elif isinstance(node, SBlockRealize):
            self.block(node, depth)
        else:
            raise NotImplementedError(type(node).__name__)

    def block(self, realize: SBlockRealize, depth: int) -> None:
        block = realize.block
        assert not block.match_buffers
        self.put(depth, f"if {self.expr(realize.predicate)}:")
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
            self.put(depth + 1, f"{self.name(axis.var)} = {self.expr(value)}")
        for buffer in block.alloc_buffers:
            shape = ", ".join(map(self.expr, buffer.shape))
            dtype = str(buffer.dtype)
            self.put(depth + 1, f"{self.name(buffer)} = _poison(({shape},), {dtype!r})")
        if block.init is not None:
            starts = [
                f"{self.name(axis.var)} == {self.expr(axis.dom.min)}"
                for axis in block.iter_vars
                if axis.iter_type == tirx.IterVar.CommReduce
            ]
            self.put(depth + 1, f"if {' and '.join(starts) or 'True'}:")
            self.stmt(block.init, depth + 2)
        self.stmt(block.body, depth + 1)


def _fill(poison: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.full(shape, poison if np.dtype(dtype).itemsize > 1 else 77, dtype)


def interpret(func: tirx.PrimFunc, arguments: list, poison: int = POISON) -> None:
    """Run `func` on NumPy arrays and numbers, in the order of its parameters; the arrays change in place.

    poison: what allocated buffers hold (77 where that is too large). Raises OutOfBounds for an access outside a buffer.
    """
    writer = _Writer()
    names = [writer.name(param) for param in func.params]
    for param, name in zip(func.params, names, strict=True):
        if tirx.is_buffer_var(param):
            for axis, size in enumerate(param.shape):
                if isinstance(size, tvm.ir.Var) and size not in writer.names:
                    writer.put(1, f"{writer.name(size)} = {name}.shape[{axis}]")
    writer.stmt(func.body, 1)
    text = f"def run({', '.join(names)}):\n" + "\n".join(writer.lines)
    space = {"_load": _load, "_store": _store, "_cast": _cast, "math": math}
    space["_poison"] = partial(_fill, poison)
    exec(text, space)
    space["run"](*arguments)
