"""Random Relax modules of the kind a compiler of LLMs meets, with the numbers that they must give.

While an operator is emitted, its result is computed in NumPy: in float64, rounded where the operator rounds to its
dtype. So `draw` gives a module, arguments for its function main, and the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.script import tirx as T

from chapters.toolkit.ir.row_index import row_index

DTYPES = ("float32", "float32", "float16", "bfloat16")
EPSILONS = (1e-5, 1e-6, 0.5)
HIDDEN = (1, 5, 8, 16, 24, 33, 64)
EXTERNAL = "tests.relax_modules.halve"


def numpy_dtype(dtype: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


@tvm.register_global_func(EXTERNAL, override=True)
def _halve(x, out) -> None:
    """A packed function that writes into the result it is given."""
    out.copyfrom((x.numpy().astype("float32") / 2).astype(x.numpy().dtype))


@dataclass(eq=False)
class Value:
    """A tensor: its variable, its numbers, its dimensions as the module says them.

    owner: the value whose memory this may be; itself if it has memory of its own, None for an argument.
    """

    var: relax.Expr
    data: np.ndarray
    dims: tuple
    owner: Value | None = None

    @property
    def dtype(self) -> str:
        return str(self.data.dtype)


@dataclass(frozen=True)
class Module:
    """A module, arguments for its function main, and what main must return."""

    mod: tvm.IRModule
    arguments: list
    results: list[np.ndarray]


def in_place(dims: Sequence, dtype: str) -> tirx.PrimFunc:
    """x = 2 * x + 1, in the memory of x; dims: numbers and variables."""

    def at(row):
        return row_index(row, dims[:-1])

    hidden = dims[-1]
    rows = math.prod(dims[:-1], start=tirx.IntImm("int64", 1))

    @T.prim_func(private=True, s_tir=True)
    def shift(p_x: T.handle):
        T.func_attr({"tirx.noalias": True})
        x = T.match_buffer(p_x, dims, dtype)
        for i, j in T.grid(rows, hidden):
            with T.sblock("shift"):
                row, h = T.axis.remap("SS", [i, j])
                x[(*at(row), h)] = T.cast(
                    T.float32(x[(*at(row), h)]) * T.float32(2) + T.float32(1), dtype
                )

    return shift


def stranger(w: te.Tensor, x: te.Tensor) -> te.Tensor:
    """A block called NT_matmul that is none: x times w, w not transposed, and its operands the other way round."""
    k = te.reduce_axis((0, x.shape[-1]), name="k")
    shape = (*x.shape[:-1], w.shape[1])
    return te.compute(shape, lambda *at: te.sum(x(*at[:-1], k) * w(k, at[-1]), axis=k), "NT_matmul")


class Writer:
    """Emits operators into one function and keeps the values made so far."""

    def __init__(self, random, builder, values: list[Value], weights: list[Value], depth: int = 0):
        self.random, self.builder = random, builder
        self.values, self.weights = values, weights
        self.visible = self.dataflow = False
        self.depth, self.calls = depth, 0
        self.condition: relax.Var | None = None
        self.chosen = True  # what it will be

    def choose(self, items: Sequence):
        return items[int(self.random.integers(len(items)))]

    def pick(self, like: Value | None = None) -> Value:
        fitting = self.values
        if like is not None:
            fitting = [v for v in fitting if self._fits(v, like)]
        late = fitting[-3:] if self.random.random() < 0.6 else fitting
        return self.choose(late)

    @staticmethod
    def _fits(a: Value, b: Value) -> bool:
        return (
            a.dtype == b.dtype
            and len(a.dims) == len(b.dims)
            and all(str(m) == str(n) for m, n in zip(a.dims, b.dims, strict=True))
        )

    def weight(self, shape: tuple[int, ...], dtype: str) -> Value:
        """A parameter or constant of that shape, used before or new."""
        for w in self.weights:
            if w.data.shape == shape and w.dtype == dtype and self.random.random() < 0.5:
                return w
        data = (self.random.standard_normal(shape) / math.sqrt(shape[-1])).astype(
            numpy_dtype(dtype)
        )
        if self.depth or self.random.random() < 0.3:  # an inner function has no parameters to spare
            return Value(relax.const(data, dtype), data, shape)
        name = f"w{len(self.weights)}"
        var = relax.Var(name, relax.TensorType(shape, dtype))
        self.weights.append(Value(var, data, shape))
        return self.weights[-1]

    def emit(self, expr, data, dims, dtype, shares: Value | None = None) -> Value:
        emit = self.builder.emit_output if self.dataflow and self.visible else self.builder.emit
        value = Value(emit(expr), np.asarray(data).astype(numpy_dtype(dtype)), tuple(dims))
        value.owner = shares.owner if shares else value
        self.values.append(value)
        return value

    # --- the operators ---

    def binary(self) -> None:
        a = self.pick()
        b = self.pick(a)
        name = self.choose(("add", "add", "add", "multiply", "subtract", "maximum"))
        data = getattr(np, name)(a.data.astype("float64"), b.data.astype("float64"))
        if np.abs(data).max(initial=0) > 100:
            return
        self.emit(getattr(relax.op, name)(a.var, b.var), data, a.dims, a.dtype)

    def bias(self) -> None:
        a = self.pick()
        if not isinstance(a.dims[-1], int):
            return
        b = self.weight((a.dims[-1],), a.dtype)
        operands = (a, b) if self.random.random() < 0.7 else (b, a)
        data = a.data.astype("float64") + b.data.astype("float64")
        self.emit(relax.op.add(*(v.var for v in operands)), data, a.dims, a.dtype)

    def unary(self) -> None:
        a = self.pick()
        x = a.data.astype("float64")
        name, data = self.choose(
            (
                ("tanh", np.tanh(x)),
                ("relu", np.maximum(x, 0)),
                ("silu", x / (1 + np.exp(-x))),
                ("negative", -x),
            )
        )
        op = getattr(relax.op, name, None) or getattr(relax.op.nn, name)
        self.emit(op(a.var), data, a.dims, a.dtype)

    def scalar(self) -> None:
        a, number = self.pick(), float(self.choose((0.5, -0.25, 2.0)))
        data = a.data.astype("float64") * number
        if np.abs(data).max(initial=0) < 100:
            self.emit(relax.op.multiply(a.var, relax.const(number, a.dtype)), data, a.dims, a.dtype)

    def norm(self) -> None:
        a = self.pick()
        if not isinstance(a.dims[-1], int):
            return
        if self.random.random() < 0.7:
            b = self.pick(a)
            total = a.data.astype("float64") + b.data.astype("float64")
            a = self.emit(relax.op.add(a.var, b.var), total, a.dims, a.dtype)
        weight, epsilon = self.weight((a.dims[-1],), a.dtype), float(self.choose(EPSILONS))
        x = a.data.astype("float64")
        data = (
            x / np.sqrt(np.mean(x**2, -1, keepdims=True) + epsilon) * weight.data.astype("float64")
        )
        expr = relax.op.nn.rms_norm(a.var, weight.var, axes=[-1], epsilon=epsilon)
        self.emit(expr, data, a.dims, a.dtype)

    def softmax(self) -> None:
        a = self.pick()
        x = np.exp(a.data.astype("float64"))
        self.emit(relax.op.nn.softmax(a.var), x / x.sum(-1, keepdims=True), a.dims, a.dtype)

    def linear(self) -> None:
        a = self.pick()
        if not isinstance(a.dims[-1], int):
            return
        n = int(self.choose(HIDDEN)) if self.random.random() < 0.4 else a.dims[-1]
        w = self.weight((n, a.dims[-1]), a.dtype)
        out_dtype = "float32" if self.random.random() < 0.3 else None
        turned = self.builder.emit(
            relax.op.permute_dims(w.var, self.choose((None, [1, 0], [-1, 0])))
        )
        for _ in range(int(self.choose((1, 1, 1, 2)))):
            data = a.data.astype("float64") @ w.data.astype("float64").T
            expr = relax.op.matmul(a.var, turned, out_dtype)
            self.emit(expr, data, (*a.dims[:-1], n), out_dtype or a.dtype)
            a = self.pick(a)

    def plain_matmul(self) -> None:
        a = self.pick()
        if isinstance(a.dims[-1], int):
            w = self.weight((a.dims[-1], a.dims[-1]), a.dtype)
            data = a.data.astype("float64") @ w.data.astype("float64")
            self.emit(relax.op.matmul(a.var, w.var), data, a.dims, a.dtype)

    def scores(self) -> None:
        """x times y transposed, both activations."""
        a = self.pick()
        b = self.pick(a)
        if len(a.dims) < 2:
            return
        axes = [*range(len(a.dims) - 2), len(a.dims) - 1, len(a.dims) - 2]
        turned = self.builder.emit(relax.op.permute_dims(b.var, axes))
        data = a.data.astype("float64") @ np.swapaxes(b.data.astype("float64"), -1, -2)
        if np.abs(data).max(initial=0) < 100:
            self.emit(relax.op.matmul(a.var, turned), data, (*a.dims[:-1], a.dims[-2]), a.dtype)

    def stranger(self) -> None:
        a = self.pick()
        if not isinstance(a.dims[-1], int):
            return
        w = self.weight((a.dims[-1], int(self.choose(HIDDEN))), a.dtype)
        data = a.data.astype("float64") @ w.data.astype("float64")
        dims = (*a.dims[:-1], w.dims[1])
        if self.random.random() < 0.5:
            expr = self.builder.call_te(stranger, w.var, a.var)
        else:
            expr = self.builder.call_te(lambda x, w: stranger(w, x), a.var, w.var)
        self.emit(expr, data, dims, a.dtype)

    def flatten(self) -> None:
        a = self.pick()
        dims = (math.prod(a.dims[:-1]), a.dims[-1]) if self.random.random() < 0.7 else (1, *a.dims)
        if len(dims) <= 3 and len(a.dims) > 1:
            shape = [int(d) if isinstance(d, tirx.IntImm) else d for d in dims]
            data = a.data.reshape([-1, a.data.shape[-1]] if len(dims) == 2 else (1, *a.data.shape))
            self.emit(relax.op.reshape(a.var, shape), data, shape, a.dtype, a)

    def turn(self) -> None:
        a = self.pick()
        if len(a.dims) > 1:
            axes = [int(i) for i in self.random.permutation(len(a.dims))]
            dims = [a.dims[i] for i in axes]
            # an identity is legalised to the tensor itself
            self.emit(relax.op.permute_dims(a.var, axes), a.data.transpose(axes), dims, a.dtype, a)

    def reduce(self) -> None:
        a = self.pick()
        name = self.choose(("sum", "max", "mean"))
        data = getattr(np, name)(a.data.astype("float64"), axis=-1, keepdims=True)
        if np.abs(data).max(initial=0) < 100:
            expr = getattr(relax.op, name)(a.var, -1, True)
            self.emit(expr, data, (*a.dims[:-1], 1), a.dtype)

    def cast(self) -> None:
        a = self.pick()
        dtype = self.choose(("float32", "float16"))
        self.emit(relax.op.astype(a.var, dtype), a.data, a.dims, dtype, a)

    def join(self) -> None:
        a = self.pick()
        b = self.pick(a)
        if isinstance(a.dims[-1], int) and a.dims[-1] <= 33:
            data, dims = np.concatenate([a.data, b.data], -1), (*a.dims[:-1], 2 * a.dims[-1])
            self.emit(relax.op.concat([a.var, b.var], -1), data, dims, a.dtype)

    def split(self) -> None:
        a = self.pick()
        if isinstance(a.dims[-1], int) and a.dims[-1] % 2 == 0:
            both, half = self.builder.emit(relax.op.split(a.var, 2, -1)), a.dims[-1] // 2
            for i in range(2):
                data = a.data[..., i * half : (i + 1) * half]
                self.emit(relax.TupleGetItem(both, i), data, (*a.dims[:-1], half), a.dtype)

    def alias(self) -> None:
        a = self.pick()
        self.emit(a.var, a.data, a.dims, a.dtype, a)

    def through_tuple(self) -> None:
        a, b = self.pick(), self.pick()
        both = self.builder.emit(relax.Tuple([a.var, b.var]))
        self.emit(relax.TupleGetItem(both, 1), b.data, b.dims, b.dtype, b)

    def external(self) -> None:
        a = self.pick()
        ty = relax.TensorType(list(a.dims), a.dtype)
        expr = relax.op.call_dps_packed(EXTERNAL, [a.var], out_ty=ty)
        self.emit(expr, a.data.astype("float64") / 2, a.dims, a.dtype)

    def constant(self) -> None:
        """A value that the compiler can compute: it must not be written into by one run for the next."""
        dtype, shape = self.choose(self.values).dtype, (3, int(self.choose(HIDDEN)))
        data = np.ones(shape) * 0.25
        expr = relax.op.add(
            relax.op.full(shape, relax.const(0.25, dtype), dtype),
            relax.const(np.zeros(shape, numpy_dtype(dtype)), dtype),
        )
        self.emit(expr, data, shape, dtype)

    def overwrite(self) -> None:
        """Update a value in place; nothing may read it, or what may share its memory, afterwards."""
        a = self.pick()
        if a.owner is None:
            return
        inner = sum(v.owner is not a.owner for v in self.values)
        if inner < 1 or any(not isinstance(d, int | tirx.Var) for d in a.dims):
            return
        func = self.builder.add_func(in_place(self._free(a.dims), a.dtype), "shift")
        ty = relax.TensorType(list(a.dims), a.dtype)
        expr = relax.op.call_tir_inplace(func, [a.var], [0], ty)
        data = a.data.astype("float64") * 2 + 1
        self.values = [v for v in self.values if v.owner is not a.owner]
        self.emit(expr, data, a.dims, a.dtype)

    @staticmethod
    def _free(dims: tuple) -> list:
        """The dimensions as a PrimFunc may have them: its own variables."""
        own: dict[str, tirx.Var] = {}
        return [
            tirx.IntImm("int64", d)
            if isinstance(d, int)
            else own.setdefault(str(d), tirx.Var(str(d), "int64"))
            for d in dims
        ]

    def _inner(self, a: Value, dims: tuple, prefix: str) -> tuple[relax.Function, Value] | None:
        """A function of one parameter, for `a`, and what it returns; None if it would return its parameter."""
        builder = relax.BlockBuilder()
        var = relax.Var(f"{prefix}_x", relax.TensorType(list(dims), a.dtype))
        inner = Writer(self.random, builder, [Value(var, a.data, dims)], [], depth=self.depth + 1)
        with builder.function(prefix, [var]):
            inner.block(int(self.random.integers(2, 5)))
            made = [v for v in inner.values if v.owner is not None]
            result = made[-1] if made else inner.values[0]
            builder.emit_func_output(result.var)
        mod = builder.get()
        return (mod[prefix], result) if made and len(mod.functions) == 1 else None

    def call(self) -> None:
        """A call of a private function with variables of its own."""
        a = self.pick()
        if self.depth or any(not isinstance(d, int | tirx.Var) for d in a.dims):
            return
        own: dict[str, tirx.Var] = {}
        dims = tuple(
            d if isinstance(d, int) else own.setdefault(str(d), tirx.Var(str(d), "int64"))
            for d in a.dims
        )
        made = self._inner(a, dims, f"helper{self.calls}")
        if made and all(isinstance(d, int) or str(d) in own for d in made[1].dims):
            self.calls += 1
            func, result = made
            gvar = self.builder.add_func(func.without_attr("global_symbol"), f"helper{self.calls}")
            back = {str(d): d for d in a.dims}
            dims = tuple(d if isinstance(d, int) else back[str(d)] for d in result.dims)
            self.emit(relax.Call(gvar, [a.var]), result.data, dims, result.dtype)

    def branch(self) -> None:
        """Two branches that give the same, or of which one gives nothing of use."""
        a = self.pick()
        if self.depth or self.dataflow or self.condition is None:
            return
        made = self._inner(a, a.dims, f"branch{self.calls}")
        if not made:
            return
        self.calls += 1
        func, result = made
        first = relax.BindingBlock([relax.VarBinding(func.params[0], a.var)])
        taken = relax.SeqExpr([first, *func.body.blocks], func.body.body)
        ty = relax.TensorType(list(result.dims), result.dtype)
        other = relax.Var("other", ty)
        zero = relax.op.zeros(list(result.dims), result.dtype)
        empty = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(other, zero)])], other)
        branches = (taken, empty) if self.chosen else (empty, taken)
        value = relax.If(self.condition, *branches)
        self.emit(value, result.data, result.dims, result.dtype)

    OPERATORS = (
        ("call", 2),
        ("branch", 2),
        ("norm", 4),
        ("linear", 5),
        ("binary", 3),
        ("bias", 2),
        ("unary", 2),
        ("scalar", 1),
        ("softmax", 1),
        ("plain_matmul", 1),
        ("scores", 2),
        ("stranger", 1),
        ("flatten", 1),
        ("turn", 1),
        ("reduce", 1),
        ("cast", 1),
        ("join", 1),
        ("split", 1),
        ("alias", 1),
        ("through_tuple", 1),
        ("external", 1),
        ("constant", 1),
        ("overwrite", 2),
    )

    def step(self) -> None:
        names = [name for name, often in self.OPERATORS for _ in range(often)]
        getattr(self, self.choose(names))()

    def block(self, steps: int) -> None:
        """Some operators in a dataflow block or outside one; all their values can be used afterwards."""
        if self.random.random() < 0.4:
            for _ in range(steps):
                self.step()
            return
        with self.builder.dataflow():
            self.dataflow = True
            inside = int(self.random.integers(0, steps))
            self.visible = False
            for _ in range(inside):
                self.step()
            self.visible = True
            kept = []
            for v in self.values:
                if isinstance(v.var, relax.DataflowVar):
                    if self.random.random() < 0.5:
                        continue
                    v.var = self.builder.emit_output(v.var)
                kept.append(v)
            self.values = kept
            for _ in range(steps - inside):
                self.step()
            self.dataflow = self.visible = False


def draw(seed: int) -> Module:
    """The module of `seed`."""
    random, builder = np.random.default_rng(seed), relax.BlockBuilder()
    dtype = str(random.choice(DTYPES))
    hidden = int(random.choice(HIDDEN))
    n = tirx.Var("n", "int64")
    size = int(random.choice([1, 2, 3, 7]))
    b = tirx.Var("b", "int64")
    said, real = [
        ((3,), (3,)),
        ((1,), (1,)),
        ((n,), (size,)),
        ((1, n), (1, size)),
        ((n, 1), (size, 1)),
        ((2, 3), (2, 3)),
        ((b, n), (2, size)),
        ((17,), (17,)),
    ][int(random.integers(8))]
    inputs = []
    for i in range(int(random.integers(1, 4))):
        data = random.standard_normal((*real, hidden)).astype(numpy_dtype(dtype))
        var = relax.Var(f"x{i}", relax.TensorType([*said, hidden], dtype))
        inputs.append(Value(var, data, (*said, hidden)))
    weights: list[Value] = []
    writer = Writer(random, builder, list(inputs), weights)
    writer.condition = relax.Var("choose", relax.TensorType((), "bool"))
    writer.chosen = bool(random.integers(2))
    params = [writer.condition, *(v.var for v in inputs)]
    with builder.function("main", params):
        for _ in range(int(random.integers(1, 4))):
            writer.block(int(random.integers(2, 6)))
        made = [v for v in writer.values if v.owner is not None][-6:]
        if not made:
            x = inputs[0]
            made = [writer.emit(relax.op.negative(x.var), -x.data, x.dims, x.dtype)]
        params.extend(w.var for w in weights)  # known only now
        builder.emit_func_output(relax.Tuple([v.var for v in made]))
    arguments = [np.array(writer.chosen), *(v.data for v in inputs + weights)]
    return Module(builder.get(), arguments, [v.data for v in made])
