"""The programs that chapter 12's checks give to a pass: a few by hand, and a strategy that draws others.

Every program comes with arguments for its function main and the results that NumPy computes in float64.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import tvm
import tvm_ffi
from hypothesis import strategies as st
from tvm import relax, tirx, topi

from chapters.checking.draws import CHOICES
from chapters.checking.relax_modules import Module, Value, Writer, in_place, is_small, written

SIZES = (4, 3, 8)  # the last dimension of inputs
WIDTHS = (2, 5, 4)  # of the weights
SHIFT = "chapters.ch12_combine_products.check_programs.shift"


@tvm.register_global_func(SHIFT, override=True)
def _shift(x):
    """A packed function that writes 2 * x + 1 into x, and returns it."""
    return x.copyfrom(x.numpy() * 2 + 1)


@dataclass
class Products(Writer):
    """Emits products that share an operand, and what may stand between them and behind them.

    known: the weights that the compiler knows.
    """

    known: list[Value] = field(default_factory=list)

    OPERATORS = (
        f"{'parallel ' * 14} read_again read_again read_again linear scores bias bias unary binary cast split alias "
        "through_tuple flatten permute overwrite overwrite call call branch norm"
    )

    def parallel(self) -> None:
        """Two to four products of one tensor; each with a weight, an operand and a use of its own."""
        x = self.pick()
        if not x.hidden or len(x.dims) > 3:
            return
        transposed = self.chance(40)
        made = []
        for _ in range(self.choose((3, 4, 2))):
            if self.chance(12):
                self.steps(1)  # something between the products
                if not any(x is value for value in self.values):
                    break  # it was overwritten
            operand = self.builder.emit(x.var) if self.chance(10) else x.var
            out_dtype = "float32" if self.chance(10) else None
            w = self.right_operand(x, transposed != self.chance(5))
            data = x.exact @ w.exact
            if not is_small(data):
                continue
            expr = relax.op.matmul(operand, w.var, out_dtype)
            value = self.emit(expr, data, x, (*x.dims[:-1], w.dims[-1]), out_dtype)
            made.append(value)
            if self.chance(12):
                self.steps(1)
        for value in made:
            if self.chance(15) and value in self.values:
                self.values.remove(value)  # its result is not used

    def right_operand(self, x: Value, transposed: bool) -> Value:
        """A weight with as many rows as `x` has columns: known, passed in or computed; sometimes one per batch."""
        width = self.choose(WIDTHS)
        batch: tuple[int, ...] = ()
        if len(x.dims) > 2 and isinstance(x.dims[0], int) and self.chance(20):
            batch = (x.dims[0],)
        shape = (*batch, width, x.hidden) if transposed else (*batch, x.hidden, width)
        w = self.weight(shape, x.dtype)
        if self.chance(10):
            twice = self.builder.emit(relax.op.add(w.var, w.var))
            w = Value(twice, (w.exact * 2).astype(w.dtype), shape)
        if not transposed:
            return w
        axes = [*range(len(batch)), len(shape) - 1, len(shape) - 2]
        var = self.builder.emit(relax.op.permute_dims(w.var, axes))
        return Value(var, np.swapaxes(w.data, -1, -2), (*batch, x.hidden, width))

    def weight(self, shape: tuple[int, ...], dtype: str) -> Value:
        """Most weights are known to the compiler; some are used before."""
        if self.chance(12):
            return super().weight(shape, dtype)
        known = [w for w in self.known if w.data.shape == shape and w.dtype == dtype]
        if known and self.chance(20):
            return self.choose(known)
        data = self.numbers.standard_normal(shape) / np.sqrt(shape[-1])
        data = data.astype(dtype)
        self.known.append(Value(relax.const(data, dtype), data, shape))
        return self.known[-1]

    def read_again(self) -> None:
        """A product of x, an update of x in place, and another product of what is in x then."""
        x = self.pick()
        if x.owner is None or not x.hidden or x.owner is not x:
            return
        if any(not isinstance(d, int | tirx.Var) for d in x.dims):
            return
        if any(value is not x and value.owner is x for value in self.values):
            return  # another name of the same tensor
        self._times_a_weight(x)
        func = self.builder.add_func(in_place(x.dims, x.dtype), "shift")
        ty = relax.TensorType(list(x.dims), x.dtype)
        new = (x.exact * 2 + 1).astype(x.dtype)
        after = self.emit(relax.op.call_tir_inplace(func, [x.var], [0], ty), new, x, shares=True)
        x.data = after.data
        for _ in range(2):
            self._times_a_weight(x)
        self.values = [value for value in self.values if value is not x]

    def _times_a_weight(self, x: Value) -> None:
        w = self.weight((x.hidden, self.choose(WIDTHS)), x.dtype)
        self.emit(relax.op.matmul(x.var, w.var), x.exact @ w.exact, x, (*x.dims[:-1], w.dims[1]))


@st.composite
def programs(draw: Callable) -> Module:
    """A program of a few blocks; in some, all variables have the same name."""
    choices = draw(CHOICES)
    drawn = written(choices, Products, SIZES, most=16)
    if choices.randrange(100) >= 75:
        return Module(with_one_name(drawn.mod), drawn.arguments, drawn.results)
    return drawn


def with_one_name(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with the name `x` for every variable of its Relax functions that holds a tensor."""
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            result[gvar] = _renamed(func)
    return result


def _renamed(func: relax.Function) -> relax.Function:
    new: dict[tvm.ir.Var, tvm.ir.Var] = {}

    def rename(var: tvm.ir.Var) -> tvm.ir.Var:
        if not isinstance(var.ty, relax.TensorType):
            return var
        if var not in new:
            new[var] = type(var)("x", var.ty)
        return new[var]

    return tvm_ffi.structural_map(func, (tvm.ir.Var, rename))


# --- by hand --------------------------------------------------------------------------------------

Write = Callable[[Products, Value], list[Value]]
n = tirx.Var("n", "int64")


def by_hand(
    write: Write,
    dims: Sequence = (3, 4),
    dtype: str = "float32",
    *,
    dataflow: bool = True,
    private: bool = False,
) -> Module:
    """The program that `write` emits for x of these dimensions, of which n is 3; it returns the results.

    private: in a function that main calls.
    """
    builder, numbers = relax.BlockBuilder(), np.random.default_rng(0)
    data = numbers.standard_normal([d if isinstance(d, int) else 3 for d in dims]).astype(dtype)
    x = Value(relax.Var("x", relax.TensorType(list(dims), dtype)), data, tuple(dims))
    writer = Products(None, numbers, builder, [x])
    params = [x.var]
    with builder.function("main", params):
        with builder.dataflow() if dataflow else contextlib.nullcontext():
            made = write(writer, x)
            outs = [builder.emit_output(v.var) if dataflow else v.var for v in made]
        params.extend(w.var for w in writer.weights)
        builder.emit_func_output(relax.Tuple(outs))
    mod = builder.get()
    if private:
        mod = _behind_a_call(mod)
    return Module(mod, [data, *(w.data for w in writer.weights)], [v.data for v in made])


def _behind_a_call(mod: tvm.IRModule) -> tvm.IRModule:
    """A module whose main calls the main of `mod`, which is private in it."""
    builder = relax.BlockBuilder()
    inner = builder.add_func(mod["main"].without_attr("global_symbol"), "inner")
    params = [relax.Var(param.name, param.ty) for param in mod["main"].params]
    with builder.function("main", params):
        builder.emit_func_output(builder.emit(relax.Call(inner, params)))
    return builder.get()


def constant(writer: Products, *shape: int, dtype: str = "float32") -> Value:
    """A weight that the compiler knows."""
    data = writer.numbers.standard_normal(shape).astype(dtype)
    return Value(relax.const(data, dtype), data, shape)


def passed(writer: Products, *shape: int) -> Value:
    """A weight that is a parameter."""
    data = writer.numbers.standard_normal(shape).astype("float32")
    var = relax.Var(f"w{len(writer.weights)}", relax.TensorType(shape, "float32"))
    writer.weights.append(Value(var, data, shape))
    return writer.weights[-1]


def times(writer: Products, x: Value, w: Value, out_dtype: str | None = None) -> Value:
    """Emit the product of x and w, a matrix or one for each batch."""
    expr = relax.op.matmul(x.var, w.var, out_dtype)
    return writer.emit(expr, x.exact @ w.exact, x, (*x.dims[:-1], w.dims[-1]), out_dtype)


def turned(writer: Products, w: Value, axes: Sequence[int] | None = None) -> Value:
    """Emit w with its dimensions permuted."""
    var = writer.builder.emit(relax.op.permute_dims(w.var, axes))
    data = w.data.transpose(axes)
    return Value(var, data, data.shape)


def with_bias(writer: Products, y: Value) -> Value:
    """Emit the sum of y and a known vector."""
    b = constant(writer, y.dims[-1])
    return writer.emit(relax.op.add(y.var, b.var), y.exact + b.exact, y)


def changed(writer: Products, x: Value) -> Value:
    """Emit 2 * x + 1."""
    two, one = (relax.const(number, x.dtype) for number in (2.0, 1.0))
    twice = writer.emit(relax.op.multiply(x.var, two), x.exact * 2, x)
    return writer.emit(relax.op.add(twice.var, one), twice.exact + 1, x)


def shift_kernel(writer: Products, x: Value) -> relax.GlobalVar:
    """A kernel, in the writer's module, that writes 2 * x + 1 into x."""
    return writer.builder.add_func(in_place(x.dims, x.dtype), "shift")


def update_of(kernel: relax.GlobalVar, x: relax.Var) -> relax.Call:
    """A call of the kernel that writes into x."""
    return relax.op.call_tir_inplace(kernel, [x], [0], x.ty)


def updated(writer: Products, x: Value, call: relax.Expr | None = None) -> Value:
    """Emit an update of x in place, after which `x` has its new numbers.

    call: how it is updated; by `shift_kernel`, unless given.
    """
    new = (x.exact * 2 + 1).astype(x.dtype)
    if call is None:
        call = update_of(shift_kernel(writer, x), x.var)
    after = writer.emit(call, new, x)
    x.data = after.data
    return after


def function(name: str, ty: tvm.ir.Type, emit: Callable, *, public: bool = True) -> relax.Function:
    """A function of one parameter of type `ty`; `emit` takes a builder and it, and returns the results."""
    builder, x = relax.BlockBuilder(), relax.Var("x", ty)
    with builder.function(name, [x]):
        builder.emit_func_output(emit(builder, x))
    func = builder.get()[name]
    return func if public else func.without_attr("global_symbol")


def _known(*shapes: tuple[int, ...]) -> Write:
    """A product of x and each of some known weights of these shapes."""

    def write(writer: Products, x: Value) -> list[Value]:
        return [times(writer, x, constant(writer, *shape, dtype=x.dtype)) for shape in shapes]

    return write


_three = _known((4, 2), (4, 5), (4, 4))


def _turned(*shapes_and_axes: tuple) -> Write:
    """A product of x and each of some known weights of these shapes, whose dimensions are permuted."""

    def write(writer: Products, x: Value) -> list[Value]:
        weights = [
            turned(writer, constant(writer, *shape), axes) for shape, axes in shapes_and_axes
        ]
        return [times(writer, x, w) for w in weights]

    return write


_three_turned = _turned(((2, 4), None), ((5, 4), None), ((4, 4), None))


def _after(step: Callable[[Products, Value], Value]) -> Write:
    """Three products, on each of which `step` is done, and then a bias is added."""

    def write(writer: Products, x: Value) -> list[Value]:
        return [with_bias(writer, step(writer, y)) for y in _three(writer, x)]

    return write


def _named_again(writer: Products, y: Value) -> Value:
    return Value(writer.builder.emit(y.var), y.data, y.dims)


def _named_twice(writer: Products, y: Value) -> Value:
    return _named_again(writer, _named_again(writer, y))


def _cast_to_its_type(writer: Products, y: Value) -> Value:
    return Value(writer.builder.match_cast(y.var, y.var.ty), y.data, y.dims)


def _permuted_to_itself(writer: Products, y: Value) -> Value:
    return turned(writer, y, [0, 1])


def _third_unused(use: Callable[[Products, Value], object]) -> Write:
    """Three products; of what `use` makes of the third, nothing is returned."""

    def write(writer: Products, x: Value) -> list[Value]:
        q, k, v = _three(writer, x)
        use(writer, v)
        return [q, k]

    return write


def _reshaped(writer: Products, y: Value, shape: tuple[int, ...]) -> relax.Var:
    return writer.builder.emit(relax.op.reshape(y.var, shape))


def _reshaped_twice(writer: Products, y: Value) -> None:
    flat = _reshaped(writer, y, (12,))
    writer.builder.emit(relax.op.reshape(flat, (4, 3)))


def _reshaped_and_cast(writer: Products, y: Value) -> None:
    flat = _reshaped(writer, y, (12,))
    writer.builder.match_cast(flat, relax.TensorType((12,), "float32"))


def _given_to_a_function(writer: Products, y: Value) -> None:
    other = _reshaped(writer, y, (4, 3))
    pure = function("pure", other.ty, lambda b, own: b.emit(relax.op.tanh(own)), public=False)
    writer.builder.emit(relax.Call(writer.builder.add_func(pure, "pure"), [other]))


def _in_a_tuple(writer: Products, x: Value) -> list[Value]:
    """All three results are in a tuple, from which two are taken."""
    made = _three(writer, x)
    both = writer.builder.emit(relax.Tuple([y.var for y in made]))
    taken = [writer.builder.emit(relax.TupleGetItem(both, at)) for at in (0, 1)]
    return [Value(var, y.data, y.dims) for var, y in zip(taken, made, strict=False)]


def _weight_dtypes(writer: Products, x: Value) -> list[Value]:
    kinds = ("float16", "float32", "float32")
    return [times(writer, x, constant(writer, 4, 2, dtype=kind), "float32") for kind in kinds]


def _updated_under_another_name(writer: Products, x: Value) -> list[Value]:
    """x is what an update of y gave; a second update of y changes it."""
    y = changed(writer, x)
    return _around(writer, updated(writer, y), update_of(shift_kernel(writer, y), y.var))


def _update_in_an_inner_function(writer: Products, x: Value) -> list[Value]:
    kernel = shift_kernel(writer, x)
    inner = function("inner", x.var.ty, lambda b, own: b.emit(update_of(kernel, own)), public=False)
    return _around(writer, x, relax.Call(writer.builder.emit(inner), [x.var]))


def _in_turns(other: Callable[[Products, Value], Value], *widths: int) -> Write:
    """Products of x and of what `other` makes of it, in turns, with known weights of these widths."""

    def write(writer: Products, x: Value) -> list[Value]:
        operands = x, other(writer, x)
        each = zip(itertools.cycle(operands), widths, strict=False)
        return [times(writer, operand, constant(writer, 4, width)) for operand, width in each]

    return write


def _out_of_its_block(writer: Products, x: Value) -> list[Value]:
    """x has its first name inside a dataflow block only, and the products are outside."""
    with writer.builder.dataflow():
        twice = writer.builder.emit(relax.op.add(x.var, x.var))
        var = writer.builder.emit_output(twice)
    return _three(writer, Value(var, x.data * 2, x.dims))


def _and_parameters(writer: Products, x: Value) -> list[Value]:
    weights = [weight(writer, 4, width) for width in (2, 5, 4) for weight in (constant, passed)]
    return [times(writer, x, w) for w in weights]


def _parameters(writer: Products, x: Value) -> list[Value]:
    return [times(writer, x, passed(writer, 4, width)) for width in (2, 5, 4)]


def _read_by(operator: Callable, exact: Callable) -> Write:
    """Three products, each of which only `operator` reads. exact: the same on NumPy's arrays."""

    def write(writer: Products, x: Value) -> list[Value]:
        made = _three(writer, x)
        return [writer.emit(operator(y.var), exact(y.exact), y) for y in made]

    return write


def _read_by_a_kernel(writer: Products, x: Value) -> list[Value]:
    made = _three(writer, x)
    calls = [writer.builder.call_te(topi.tanh, y.var) for y in made]
    return [writer.emit(call, np.tanh(y.exact), y) for call, y in zip(calls, made, strict=True)]


def _out_dtypes(writer: Products, x: Value) -> list[Value]:
    kinds = (None, "float32", None, "float32")
    return [times(writer, x, constant(writer, 4, 2, dtype=x.dtype), kind) for kind in kinds]


def _also_read(use: Callable[[Products, Value, Value], Value | None], stored=False) -> Write:
    """Three products of x, after which `use` takes the writer, x and the third weight, and may give a further result.

    stored: whether the weights are stored transposed.
    """

    def write(writer: Products, x: Value) -> list[Value]:
        if stored:
            weights = [turned(writer, constant(writer, width, 4)) for width in (2, 5, 4)]
        else:
            weights = [constant(writer, 4, width) for width in (2, 5, 4)]
        made = [times(writer, x, w) for w in weights]
        more = use(writer, x, weights[2])
        return [*made, more] if more else made

    return write


def _added(writer: Products, _x: Value, w: Value) -> Value:
    y = passed(writer, 4, 4)
    return writer.emit(relax.op.add(y.var, w.var), y.exact + w.exact, y)


def _in_another_function(writer: Products, x: Value, w: Value) -> None:
    func = function("other", x.var.ty, lambda b, own: b.emit(relax.op.matmul(own, w.var)))
    writer.builder.add_func(func, "other")


def _weight_used_twice(writer: Products, x: Value) -> list[Value]:
    weights = [constant(writer, 4, width) for width in (2, 5, 4)]
    y = changed(writer, x)
    return [times(writer, operand, w) for operand in (x, y) for w in weights]


def _equal_weights(writer: Products, x: Value) -> list[Value]:
    """Two constants with the same numbers: the compiled program keeps one of them."""
    first, third = constant(writer, 4, 2), constant(writer, 4, 4)
    equal = Value(relax.const(first.data.copy()), first.data, first.dims)
    return [times(writer, x, w) for w in (first, equal, third)]


def _beside(ty: relax.TensorType, *rows: int) -> Write:
    """A product; beside it, a function that is not called multiplies a tensor of type `ty` by weights of these rows."""

    def write(writer: Products, x: Value) -> list[Value]:
        weights = [constant(writer, count, 2) for count in rows]

        def products(builder: relax.BlockBuilder, own: relax.Var) -> relax.Tuple:
            return relax.Tuple([builder.emit(relax.op.matmul(own, w.var)) for w in weights])

        writer.builder.add_func(function("other", ty, products), "other")
        return [times(writer, x, constant(writer, 4, 5))]

    return write


_UNKNOWN_SHAPE = relax.TensorType(dtype="float32", ndim=2)
_M_COLUMNS = relax.TensorType([3, tirx.Var("m", "int64")], "float32")


def _update_between(writer: Products, x: Value) -> list[Value]:
    return _around(writer, changed(writer, x))


def _around(writer: Products, x: Value, call: relax.Expr | None = None) -> list[Value]:
    """A product of x before its update, and two products after it."""
    early = times(writer, x, constant(writer, 4, 2))
    after = updated(writer, x, call)
    return [early, after, *(times(writer, x, constant(writer, 4, width)) for width in (5, 4))]


def _update_in_a_function(writer: Products, x: Value) -> list[Value]:
    kernel = shift_kernel(writer, x)
    update = function(
        "update", x.var.ty, lambda b, own: b.emit(update_of(kernel, own)), public=False
    )
    return _around(writer, x, relax.Call(writer.builder.add_func(update, "update"), [x.var]))


def _update_in_a_branch(writer: Products, x: Value, *, nested: bool = False) -> list[Value]:
    choose = relax.Var("choose", relax.TensorType((), "bool"))
    writer.weights.append(Value(choose, np.array(True), ()))
    value = update_of(shift_kernel(writer, x), x.var)
    for _ in range(1 + nested):
        branches = []
        for one in (value, relax.op.exp(x.var)):
            var = relax.Var("either", x.var.ty)
            branches.append(relax.SeqExpr([relax.BindingBlock([relax.VarBinding(var, one)])], var))
        value = relax.If(choose, *branches)
    return _around(writer, x, value)


def _update_by_a_packed_function(writer: Products, x: Value) -> list[Value]:
    call = relax.op.call_inplace_packed(SHIFT, x.var, inplace_indices=[0], ty_args=[x.var.ty])
    return _around(writer, x, call)


def _update_of_a_result(writer: Products, x: Value) -> list[Value]:
    q, k = (times(writer, x, constant(writer, 4, width)) for width in (2, 5))
    after = updated(writer, q)
    return [after, k, *(times(writer, x, constant(writer, 4, width)) for width in (4, 3))]


def _vectors(writer: Products, x: Value) -> list[Value]:
    found = []
    for _ in range(3):
        w = constant(writer, 4)
        expr = relax.op.matmul(x.var, w.var)
        found.append(writer.emit(expr, x.exact @ w.exact, x, x.dims[:-1]))
    return found


def _computed(writer: Products, x: Value) -> list[Value]:
    """Each weight is computed, the third from the first product."""
    first = times(writer, x, constant(writer, 4, 4))
    weight = constant(writer, 4, 5)
    twice = writer.emit(relax.op.add(weight.var, weight.var), weight.exact * 2, weight, (4, 5))
    third = writer.emit(relax.op.tanh(first.var), np.tanh(first.exact), first)
    return [first, times(writer, x, twice), times(writer, x, third)]


def _one_name() -> Module:
    """Two tensors of which the variables have one name."""
    drawn = by_hand(_in_turns(changed, 2, 5, 4, 3))
    return Module(with_one_name(drawn.mod), drawn.arguments, drawn.results)


_of = partial(partial, by_hand)  # a program, which is made when it is needed
# what a pass must combine
MUST = {
    "three known weights": _of(_three),
    "three known weights, each transposed": _of(_three_turned),
    "float16 and a symbolic number of rows": _of(_three, (n, 4), "float16"),
    "an x with two batch dimensions": _of(_three_turned, (2, 3, 4)),
    "the products outside of a dataflow block": _of(_three, dataflow=False),
    "the products in a private function": _of(_three_turned, private=True),
    "products of two tensors in turns": _of(_in_turns(changed, 2, 2, 5, 5, 4, 4)),
    "transposes whose axes count from the end": _of(
        _turned(*(((4, 4), axes) for axes in ([-1, -2], [-1, 0], [1, -2])))
    ),
    "one tensor under two names": _of(_in_turns(_named_again, 2, 5, 4)),
    "a tensor whose first name ends with its dataflow block": _of(
        _out_of_its_block, dataflow=False
    ),
    "weights that are known, and weights that are passed, in turns": _of(_and_parameters),
}
# where combining is wrong, or costs more than it saves
STAYS = {
    "weights that are parameters": _of(_parameters),
    "a bias behind each product": _of(_after(lambda writer, y: y)),
    "a bias behind another name of each product": _of(_after(_named_again)),
    "a bias behind another name of another name of each product": _of(_after(_named_twice)),
    "a bias behind a match_cast of each product": _of(_after(_cast_to_its_type)),
    "a bias behind a permute_dims of each product that permutes nothing": _of(
        _after(_permuted_to_itself)
    ),
    "a relu behind each product": _of(_read_by(relax.op.nn.relu, lambda a: np.maximum(a, 0))),
    "an exp behind each product": _of(_read_by(relax.op.exp, np.exp)),
    "a call of a kernel behind each product": _of(_read_by_a_kernel),
    "a result that is not used": _of(_third_unused(lambda writer, y: None)),
    "a result that only an unused value needs": _of(
        _third_unused(partial(_reshaped, shape=(3, 2, 2)))
    ),
    "a result of which an unused value is made in two steps": _of(_third_unused(_reshaped_twice)),
    "a result that only an unused match_cast needs": _of(_third_unused(_reshaped_and_cast)),
    "a result that only an unused call of a pure function needs": _of(
        _third_unused(_given_to_a_function)
    ),
    "a tuple of the results of which one is not taken": _of(_in_a_tuple),
    "results of two dtypes": _of(_out_dtypes, dtype="float16"),
    "weights that two tensors are multiplied by": _of(_weight_used_twice),
    "a transposed weight that another product reads": _of(
        _also_read(lambda writer, x, w: times(writer, passed(writer, 3, 4), w), stored=True)
    ),
    "a weight that an addition reads too": _of(_also_read(_added)),
    "a weight that another function reads too": _of(_also_read(_in_another_function)),
    "a weight that is returned": _of(_also_read(lambda writer, x, w: w), dataflow=False),
    "weights of two dtypes": _of(_weight_dtypes),
    "a weight without columns": _of(_known((4, 0), (4, 2), (4, 3))),
    "two weights with the same numbers": _of(_equal_weights),
    "an update of x between the products": _of(_update_between),
    "a call between the products of a function that updates x": _of(_update_in_a_function),
    "an update of x in a branch between the products": _of(_update_in_a_branch, dataflow=False),
    "an update of x in a branch of a branch between the products": _of(
        partial(_update_in_a_branch, nested=True), dataflow=False
    ),
    "a call between the products of an inner function that updates x": _of(
        _update_in_an_inner_function, dataflow=False
    ),
    "an update of x under another name between the products": _of(_updated_under_another_name),
    "an update of x by a packed function between the products": _of(_update_by_a_packed_function),
    "an update of a result between the products": _of(_update_of_a_result),
    "two tensors of one name": _one_name,
    "a permute_dims that permutes nothing": _of(_turned(*[((4, 4), [0, 1])] * 3), (4, 4)),
    "weights that are vectors": _of(_vectors),
    "a vector times matrices": _of(_three, (4,)),
    "weights with batches": _of(_known((2, 4, 2), (1, 4, 2), (2, 4, 2), (4, 2)), (2, 3, 4)),
    "weights that are computed": _of(_computed, (4, 4)),
    "an x of unknown shape": _of(_beside(_UNKNOWN_SHAPE, 4)),
    "weights with different numbers of rows": _of(_beside(_M_COLUMNS, 4, 5, 4)),
}
CASES = MUST | STAYS


def layer(rows: Sequence[int], size: int = 256) -> tvm.IRModule:
    """For each number of rows a function rows_N(x), which multiplies x (N, size) by three weights (size, size)."""
    builder, numbers = relax.BlockBuilder(), np.random.default_rng(0)
    for count in rows:
        x = relax.Var("x", relax.TensorType((count, size), "float32"))
        with builder.function(f"rows_{count}", [x]):
            with builder.dataflow():
                outs = []
                for _ in range(3):
                    w = relax.const(numbers.standard_normal((size, size), "float32"))
                    wt = builder.emit(relax.op.permute_dims(w))
                    outs.append(builder.emit_output(relax.op.matmul(x, wt)))
            builder.emit_func_output(relax.Tuple(outs))
    return builder.get()
