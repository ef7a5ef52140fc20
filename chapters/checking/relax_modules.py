"""A strategy for Relax modules of the kind a compiler of LLMs meets, with the numbers that they must give.

`modules()` draws a module, arguments for its function main, and the results: while it emits an operator, it computes
the result in NumPy, in float64, rounded where the operator rounds to its dtype. The first choice of every list is the
simplest, so Hypothesis shrinks a failure towards few operators, small shapes and float32.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import tvm
from hypothesis import strategies as st
from tvm import relax, te, tirx
from tvm.script import tirx as T

from chapters.checking.draws import CHOICES
from chapters.kit.ir.row_index import row_index

DTYPES = ("float32", "float32", "float16", "bfloat16")
EPSILONS = (1e-5, 1e-6, 0.5)
HIDDEN = (1, 5, 8, 16, 24, 33, 64)
n, b = (tirx.Var(name, "int64") for name in "nb")
ROWS = (  # the leading dimensions of the inputs: as the module says them, and their values; None is drawn
    *((shape, shape) for shape in ((1,), (3,), (2, 3), (17,))),
    ((n,), (None,)),
    ((1, n), (1, None)),
    ((n, 1), (None, 1)),
    ((b, n), (2, None)),
)
EXTERNAL = "chapters.checking.relax_modules.halve"


@tvm.register_global_func(EXTERNAL, override=True)
def _halve(x, out) -> None:
    """A packed function that writes into the result it is given."""
    out.copyfrom((x.numpy().astype("float32") / 2).astype(x.numpy().dtype))


@dataclass(eq=False)
class Value:
    """A tensor: its variable, its numbers, its dimensions as the module says them.

    owner: the value whose memory this may share; itself if it has its own memory, None for an argument.
    """

    var: relax.Expr
    data: np.ndarray
    dims: tuple
    owner: Value | None = None

    @property
    def dtype(self) -> str:
        return str(self.data.dtype)

    @property
    def exact(self) -> np.ndarray:
        return self.data.astype("float64")

    @property
    def hidden(self) -> int | None:
        """The last dimension, if it is a number."""
        return self.dims[-1] if isinstance(self.dims[-1], int) else None

    def fits(self, other: Value) -> bool:
        """Whether both have one dtype and the same dimensions."""
        return (self.dtype, *map(str, self.dims)) == (other.dtype, *map(str, other.dims))


@dataclass(frozen=True)
class Module:
    """A module, arguments for its function main, and what main must return: without `results`, what it returns here."""

    mod: tvm.IRModule
    arguments: list
    results: list[np.ndarray] | None = None


def own_variables(dims: Sequence) -> tuple:
    """The dimensions as another function may have them: with its own variables."""
    own: dict[str, tirx.Var] = {}
    return tuple(
        d if isinstance(d, int) else own.setdefault(str(d), tirx.Var(str(d), "int64")) for d in dims
    )


def is_small(data: np.ndarray) -> bool:
    return np.abs(data).max(initial=0) < 100


def in_place(dims: Sequence, dtype: str) -> tirx.PrimFunc:
    """x = 2 * x + 1, in the memory of x; dims: numbers and variables."""
    return _in_place(tuple(d if isinstance(d, int) else str(d) for d in dims), dtype)


@cache  # parsing takes longer than all else that is done to draw a module
def _in_place(names: tuple[int | str, ...], dtype: str) -> tirx.PrimFunc:
    dims = [tirx.IntImm("int64", d) if isinstance(d, int) else d for d in own_variables(names)]
    hidden = dims[-1]
    rows = math.prod(dims[:-1], start=tirx.IntImm("int64", 1))

    def at(row, h):
        return (*row_index(row, dims[:-1]), h)

    @T.prim_func(private=True, s_tir=True)
    def shift(p_x: T.handle):
        T.func_attr({"tirx.noalias": True})
        x = T.match_buffer(p_x, dims, dtype)
        for i, j in T.grid(rows, hidden):
            with T.sblock("shift"):
                row, h = T.axis.remap("SS", [i, j])
                x[at(row, h)] = T.cast(
                    T.float32(x[at(row, h)]) * T.float32(2) + T.float32(1), dtype
                )

    return shift


def stranger(w: te.Tensor, x: te.Tensor) -> te.Tensor:
    """A block called NT_matmul that is something else: x times w with w not transposed, and operands swapped."""
    k = te.reduce_axis((0, x.shape[-1]), name="k")
    shape = (*x.shape[:-1], w.shape[1])
    return te.compute(shape, lambda *at: te.sum(x(*at[:-1], k) * w(k, at[-1]), axis=k), "NT_matmul")


@dataclass
class Writer:
    """Emits operators into one function and keeps the values made so far.

    choices: an example of CHOICES. numbers: what weights are filled from.
    """

    choices: random.Random
    numbers: np.random.Generator
    builder: relax.BlockBuilder
    values: list[Value]
    depth: int = 0
    weights: list[Value] = field(default_factory=list)
    visible: bool = False
    dataflow: bool = False
    calls: int = 0
    condition: relax.Var | None = None
    chosen: bool = True  # what the condition will be

    def choose(self, items: Sequence):
        return self.choices.choice(items)

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred draws; False is the simpler choice."""
        return self.choices.randrange(100) >= 100 - percent

    def pick(self, like: Value | None = None) -> Value:
        fitting = self.values
        if like is not None:
            fitting = [v for v in fitting if v.fits(like)]
        return self.choose(fitting[:-4:-1] if self.chance(60) else fitting)

    def weight(self, shape: tuple[int, ...], dtype: str) -> Value:
        """A parameter or constant of that shape, used before or new."""
        for w in self.weights:
            if w.data.shape == shape and w.dtype == dtype and self.chance(50):
                return w
        data = self.numbers.standard_normal(shape) / math.sqrt(shape[-1])
        data = data.astype(dtype)
        if self.depth or self.chance(30):  # an inner function has no parameters to spare
            return Value(relax.const(data, dtype), data, shape)
        var = relax.Var(f"w{len(self.weights)}", relax.TensorType(shape, dtype))
        self.weights.append(Value(var, data, shape))
        return self.weights[-1]

    def emit(self, expr, data, like: Value, dims=None, dtype=None, shares: bool = False) -> Value:
        """Bind `expr`, with the dimensions and dtype of `like` if not given. shares: may be in the memory of `like`."""
        emit = self.builder.emit_output if self.dataflow and self.visible else self.builder.emit
        data = np.asarray(data).astype(dtype or like.dtype)
        value = Value(emit(expr), data, tuple(like.dims if dims is None else dims))
        value.owner = like.owner if shares else value
        self.values.append(value)
        return value

    # --- the operators ---

    def binary(self) -> None:
        a = self.pick()
        b = self.pick(a)
        name = self.choose(("add", "add", "add", "multiply", "subtract", "maximum"))
        data = getattr(np, name)(a.exact, b.exact)
        if np.abs(data).max(initial=0) <= 100:
            self.emit(getattr(relax.op, name)(a.var, b.var), data, a)

    def bias(self) -> None:
        a = self.pick()
        if a.hidden:
            b = self.weight((a.hidden,), a.dtype)
            operands = (b, a) if self.chance(30) else (a, b)
            self.emit(relax.op.add(*(v.var for v in operands)), a.exact + b.exact, a)

    def unary(self) -> None:
        a = self.pick()
        x = a.exact
        silu = x / (1 + np.exp(-x))
        results = {"tanh": np.tanh(x), "relu": np.maximum(x, 0), "silu": silu, "negative": -x}
        name = self.choose(list(results))
        op = getattr(relax.op, name, None) or getattr(relax.op.nn, name)
        self.emit(op(a.var), results[name], a)

    def scalar(self) -> None:
        a, number = self.pick(), float(self.choose((0.5, -0.25, 2.0)))
        data = a.exact * number
        if is_small(data):
            self.emit(relax.op.multiply(a.var, relax.const(number, a.dtype)), data, a)

    def norm(self) -> None:
        a = self.pick()
        if not a.hidden:
            return
        if self.chance(70):
            b = self.pick(a)
            a = self.emit(relax.op.add(a.var, b.var), a.exact + b.exact, a)
        self.norm_of(a)

    def norm_of(self, a: Value) -> None:
        weight, epsilon = self.weight((a.hidden,), a.dtype), float(self.choose(EPSILONS))
        x = a.exact
        data = x / np.sqrt(np.mean(x**2, -1, keepdims=True) + epsilon) * weight.exact
        expr = relax.op.nn.rms_norm(a.var, weight.var, axes=[-1], epsilon=epsilon)
        self.emit(expr, data, a)

    def softmax(self) -> None:
        a = self.pick()
        x = np.exp(a.exact)
        self.emit(relax.op.nn.softmax(a.var), x / x.sum(-1, keepdims=True), a)

    def linear(self) -> None:
        a = self.pick()
        if not a.hidden:
            return
        n = self.choose(HIDDEN) if self.chance(40) else a.hidden
        w = self.weight((n, a.hidden), a.dtype)
        out_dtype = "float32" if self.chance(30) else None
        axes = self.choose((None, [1, 0], [-1, 0]))
        transposed = self.builder.emit(relax.op.permute_dims(w.var, axes))
        for _ in range(self.choose((1, 1, 1, 2))):
            expr = relax.op.matmul(a.var, transposed, out_dtype)
            self.emit(expr, a.exact @ w.exact.T, a, (*a.dims[:-1], n), out_dtype)
            a = self.pick(a)

    def plain_matmul(self) -> None:
        a = self.pick()
        if a.hidden:
            w = self.weight((a.hidden, a.hidden), a.dtype)
            self.emit(relax.op.matmul(a.var, w.var), a.exact @ w.exact, a)

    def scores(self) -> None:
        """x times y transposed, both activations."""
        a = self.pick()
        b = self.pick(a)
        if len(a.dims) < 2:
            return
        axes = [*range(len(a.dims) - 2), len(a.dims) - 1, len(a.dims) - 2]
        transposed = self.builder.emit(relax.op.permute_dims(b.var, axes))
        data = a.exact @ np.swapaxes(b.exact, -1, -2)
        if is_small(data):
            self.emit(relax.op.matmul(a.var, transposed), data, a, (*a.dims[:-1], a.dims[-2]))

    def stranger(self) -> None:
        a = self.pick()
        if not a.hidden:
            return
        w = self.weight((a.hidden, self.choose(HIDDEN)), a.dtype)
        if self.chance(50):
            expr = self.builder.call_te(lambda x, w: stranger(w, x), a.var, w.var)
        else:
            expr = self.builder.call_te(stranger, w.var, a.var)
        self.emit(expr, a.exact @ w.exact, a, (*a.dims[:-1], w.dims[1]))

    def flatten(self) -> None:
        a = self.pick()
        dims = (1, *a.dims) if self.chance(30) else (math.prod(a.dims[:-1]), a.dims[-1])
        if len(dims) <= 3 and len(a.dims) > 1:
            shape = [int(d) if isinstance(d, tirx.IntImm) else d for d in dims]
            data = a.data.reshape([-1, a.data.shape[-1]] if len(dims) == 2 else (1, *a.data.shape))
            self.emit(relax.op.reshape(a.var, shape), data, a, shape, shares=True)

    def permute(self) -> None:
        a = self.pick()
        if len(a.dims) > 1:
            axes = self.choices.sample(range(len(a.dims)), len(a.dims))
            dims = [a.dims[i] for i in axes]
            # an identity is legalised to the tensor itself
            expr = relax.op.permute_dims(a.var, axes)
            self.emit(expr, a.data.transpose(axes), a, dims, shares=True)

    def reduce(self) -> None:
        a = self.pick()
        name = self.choose(("sum", "max", "mean"))
        data = getattr(np, name)(a.exact, axis=-1, keepdims=True)
        if is_small(data):
            self.emit(getattr(relax.op, name)(a.var, -1, True), data, a, (*a.dims[:-1], 1))

    def cast(self) -> None:
        a = self.pick()
        dtype = self.choose(("float32", "float16"))
        self.emit(relax.op.astype(a.var, dtype), a.data, a, dtype=dtype, shares=True)

    def join(self) -> None:
        a = self.pick()
        b = self.pick(a)
        if a.hidden and a.hidden <= 33:
            data, dims = np.concatenate([a.data, b.data], -1), (*a.dims[:-1], 2 * a.hidden)
            self.emit(relax.op.concat([a.var, b.var], -1), data, a, dims)

    def split(self) -> None:
        a = self.pick()
        if a.hidden and a.hidden % 2 == 0:
            both = self.builder.emit(relax.op.split(a.var, 2, -1))
            for i, data in enumerate(np.split(a.data, 2, -1)):
                self.emit(relax.TupleGetItem(both, i), data, a, (*a.dims[:-1], a.hidden // 2))

    def alias(self) -> None:
        a = self.pick()
        self.emit(a.var, a.data, a, shares=True)

    def through_tuple(self) -> None:
        a, b = self.pick(), self.pick()
        both = self.builder.emit(relax.Tuple([a.var, b.var]))
        self.emit(relax.TupleGetItem(both, 1), b.data, b, shares=True)

    def external(self) -> None:
        a = self.pick()
        ty = relax.TensorType(list(a.dims), a.dtype)
        self.emit(relax.op.call_dps_packed(EXTERNAL, [a.var], out_ty=ty), a.exact / 2, a)

    def constant(self) -> None:
        """A value that the compiler can compute in advance; a run must not write into it, or the next run differs."""
        like, shape = self.choose(self.values), (3, self.choose(HIDDEN))
        full = relax.op.full(shape, relax.const(0.25, like.dtype), like.dtype)
        zeros = relax.const(np.zeros(shape, like.dtype), like.dtype)
        self.emit(relax.op.add(full, zeros), np.full(shape, 0.25), like, shape)

    def overwrite(self) -> None:
        """Update a value in place; afterwards it must not be read, nor a value that may share its memory."""
        a = self.pick()
        if a.owner is None:
            return
        inner = sum(v.owner is not a.owner for v in self.values)
        if inner < 1 or any(not isinstance(d, int | tirx.Var) for d in a.dims):
            return
        func = self.builder.add_func(in_place(a.dims, a.dtype), "shift")
        expr = relax.op.call_tir_inplace(
            func, [a.var], [0], relax.TensorType(list(a.dims), a.dtype)
        )
        self.values = [v for v in self.values if v.owner is not a.owner]
        self.emit(expr, a.exact * 2 + 1, a)

    def _inner(self, a: Value, dims: tuple, prefix: str) -> tuple[relax.Function, Value] | None:
        """A function of one parameter, for `a`, and what it returns; None if it would return its parameter."""
        builder = relax.BlockBuilder()
        var = relax.Var(f"{prefix}_x", relax.TensorType(list(dims), a.dtype))
        values = [Value(var, a.data, dims)]
        inner = type(self)(self.choices, self.numbers, builder, values, depth=self.depth + 1)
        with builder.function(prefix, [var]):
            inner.block(self.choices.randint(2, 4))
            made = [v for v in inner.values if v.owner is not None]
            result = made[-1] if made else inner.values[0]
            builder.emit_func_output(result.var)
        mod = builder.get()
        return (mod[prefix], result) if made and len(mod.functions) == 1 else None

    def call(self) -> None:
        """A call of a private function that has its own symbolic variables."""
        a = self.pick()
        if self.depth or any(not isinstance(d, int | tirx.Var) for d in a.dims):
            return
        back = {str(d): d for d in a.dims}
        made = self._inner(a, own_variables(a.dims), f"helper{self.calls}")
        if made and all(isinstance(d, int) or str(d) in back for d in made[1].dims):
            self.calls += 1
            func, result = made
            gvar = self.builder.add_func(func.without_attr("global_symbol"), f"helper{self.calls}")
            dims = [d if isinstance(d, int) else back[str(d)] for d in result.dims]
            self.emit(relax.Call(gvar, [a.var]), result.data, result, dims)

    def branch(self) -> None:
        """An If; the branch that is taken computes the result, the other one gives zeros."""
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
        other = relax.Var("other", relax.TensorType(list(result.dims), result.dtype))
        zero = relax.op.zeros(list(result.dims), result.dtype)
        empty = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(other, zero)])], other)
        branches = (taken, empty) if self.chosen else (empty, taken)
        self.emit(relax.If(self.condition, *branches), result.data, result)

    OPERATORS = (  # each as often as it is to be drawn
        "unary unary binary binary binary bias bias scalar norm norm norm norm linear linear linear linear linear "
        "plain_matmul scores scores softmax reduce cast join split alias through_tuple flatten permute constant "
        "stranger external overwrite overwrite call call branch branch"
    )

    def steps(self, number: int) -> None:
        for _ in range(number):
            getattr(self, self.choose(self.OPERATORS.split()))()

    def block(self, steps: int) -> None:
        """Some operators in a dataflow block or outside one; all their values can be used afterwards."""
        if not self.chance(60):
            return self.steps(steps)
        with self.builder.dataflow():
            self.dataflow = True
            inside = self.choices.randint(0, steps - 1)
            self.visible = False
            self.steps(inside)
            self.visible = True
            kept = []
            for v in self.values:
                if isinstance(v.var, relax.DataflowVar):
                    if self.chance(50):
                        continue
                    v.var = self.builder.emit_output(v.var)
                kept.append(v)
            self.values = kept
            self.steps(steps - inside)
            self.dataflow = self.visible = False


@st.composite
def modules(draw: Callable) -> Module:
    """A module of a few blocks of operators on one to three inputs."""
    return write_module(draw(CHOICES), Writer, HIDDEN)


def write_module(
    choices: random.Random, kind: type[Writer], sizes: Sequence[int], most: int = 6
) -> Module:
    """The module that a writer of that kind makes of `choices`.

    sizes: possible last dimensions of its inputs. most: results, which are the values that were emitted last.
    """
    builder, numbers = relax.BlockBuilder(), np.random.default_rng(choices.randrange(1000))
    dtype, hidden = choices.choice(DTYPES), choices.choice(sizes)
    said, real = choices.choice(ROWS)
    value_of_n = choices.choice((1, 2, 3, 7))
    shape = [*(value_of_n if size is None else size for size in real), hidden]
    inputs = []
    for i in range(choices.randint(1, 3)):
        data = numbers.standard_normal(shape).astype(dtype)
        var = relax.Var(f"x{i}", relax.TensorType([*said, hidden], dtype))
        inputs.append(Value(var, data, (*said, hidden)))
    writer = kind(choices, numbers, builder, list(inputs))
    writer.condition = relax.Var("choose", relax.TensorType((), "bool"))
    writer.chosen = bool(choices.randrange(2))
    params = [writer.condition, *(v.var for v in inputs)]
    with builder.function("main", params):
        for _ in range(choices.randint(1, 3)):
            writer.block(choices.randint(2, 5))
        made = [v for v in writer.values if v.owner is not None][-most:]
        if not made:
            x = inputs[0]
            made = [writer.emit(relax.op.negative(x.var), -x.data, x)]
        params.extend(w.var for w in writer.weights)  # known only now
        builder.emit_func_output(relax.Tuple([v.var for v in made]))
    arguments = [np.array(writer.chosen), *(v.data for v in inputs + writer.weights)]
    return Module(builder.get(), arguments, [v.data for v in made])
