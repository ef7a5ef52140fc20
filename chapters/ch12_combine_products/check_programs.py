"""The programs that chapter 12's checks give to a pass: a few by hand, and a strategy that draws others.

A program that is drawn comes with the results that NumPy computes in float64.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from string import ascii_lowercase

import numpy as np
import tvm
import tvm_ffi
from hypothesis import strategies as st
from tvm import relax, tirx

from chapters.checking.draws import CHOICES
from chapters.checking.programs import arguments
from chapters.checking.relax_modules import Module, Value, Writer, in_place, is_small, write_module
from chapters.kit.cases.relax_text import kernel, relax_module
from chapters.kit.ir.relax_effects import relax_functions

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
    drawn = write_module(choices, Products, SIZES, most=16)
    if choices.randrange(100) >= 75:
        return Module(with_one_name(drawn.mod), drawn.arguments, drawn.results)
    return drawn


def with_one_name(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with the name `x` for every variable of its Relax functions that holds a tensor."""
    new: dict[tvm.ir.Var, tvm.ir.Var] = {}

    def rename(var: tvm.ir.Var) -> tvm.ir.Var:
        if not isinstance(var.ty, relax.TensorType):
            return var
        return new.setdefault(var, type(var)("x", var.ty))

    result = mod.clone()
    for name, func in relax_functions(mod).items():
        result[name] = tvm_ffi.structural_map(func, (tvm.ir.Var, rename))
    return result


# --- by hand --------------------------------------------------------------------------------------

WEIGHT = re.compile(r"\b[a-zA-Z](h?)(\d+(?:x\d+)*)\b")


def known_weights(text: str, dtype: str = "float32") -> dict[str, relax.Expr]:
    """The weights that `text` names and the compiler knows: `a4x2` is one of shape (4, 2), `ah4x2` one in float16.

    `A4x2` is another constant with the numbers of `a4x2`.
    """
    weights = {}
    for name in WEIGHT.finditer(text):
        shape = [int(size) for size in name[2].split("x")]
        numbers = np.random.default_rng(list(name[0].lower().encode())).standard_normal(shape)
        kind = "float16" if name[1] else dtype
        weights[name[0]] = relax.const(numbers.astype(kind), kind)
    return weights


def program(
    body: str,
    params: str = "x: (3, 4)",
    *,
    functions: str = "",
    dataflow: bool = True,
    changed_by: Callable[[tvm.IRModule], tvm.IRModule] = lambda mod: mod,
) -> Module:
    """The program main(params) with this body, behind `functions`. A parameter of bool is true.

    The text may name weights: see `known_weights`. changed_by: a pass that is run on it.
    """
    head = f"{functions}\n{'' if dataflow else '@bare'}\ndef main({params}):\n"
    text = head + textwrap.indent(textwrap.dedent(body).strip(), "    ")
    known = known_weights(text, "float16" if "float16" in params else "float32")
    mod = changed_by(relax_module(text, **known))
    given = [np.array(True) if a.dtype == bool else a for a in arguments(mod["main"])]
    return Module(mod, given)


THREE = "q = R.matmul(x, a4x2); k = R.matmul(x, b4x5); v = R.matmul(x, c4x4)"
TRANSPOSED = "at = R.permute_dims(a2x4); bt = R.permute_dims(b5x4); ct = R.permute_dims(c4x4)"
THREE_TRANSPOSED = f"{TRANSPOSED}; q = R.matmul(x, at); k = R.matmul(x, bt); v = R.matmul(x, ct)"
PASSED = "x: (3, 4), a: (4, 2), b: (4, 5), c: (4, 4)"
CHANGED = "y = R.add(R.multiply(x, R.const(2.0)), R.const(1.0))"
SHIFT_KERNEL = kernel("shift(a)", (3, 4), "a[at] = a[at] * T.float32(2) + T.float32(1)")
UPDATE = "R.call_tir_inplace(cls.shift, ({},), [0], R.Tensor((3, 4), 'float32'))"
BRANCH = f"""
if choose:
    new = {UPDATE.format("x")}
else:
    new = R.exp(x)
"""
UPDATE_FUNCTION = (
    f"@private\n@bare\ndef update(a: (3, 4)):\n    new = {UPDATE.format('a')}\n    return new\n"
)


def _three(*more: str, returned: str = "q, k, v") -> str:
    """A body of three products, and what comes behind them."""
    return "; ".join([THREE, *more, f"return {returned}"])


def _behind_each(step: str) -> str:
    """A body of three products with `step` behind each: `@` is the product, `#` its width, `@_out` the result."""
    steps = (
        step.replace("@", name).replace("#", width)
        for name, width in zip("qkv", "254", strict=True)
    )
    return _three(*steps, returned="q_out, k_out, v_out")


def _around(update: str, operand: str = "x") -> str:
    """A body of a product, an update of its operand, which binds `new`, and two products of what is in it then."""
    return f"""
q = R.matmul({operand}, a4x2)
{update}
k = R.matmul({operand}, b4x5)
v = R.matmul({operand}, c4x4)
return q, new, k, v
"""


def _permuted(*axes: list[int]) -> str:
    """A body of three products with square weights, whose dimensions are permuted."""
    products = (
        f"{n} = R.matmul(x, R.permute_dims({n}4x4, {a}))" for n, a in zip("qkv", axes, strict=True)
    )
    return "; ".join([*products, "return q, k, v"])


_of = partial(partial, program)  # a program, which is made when it is needed
# what a pass must combine
MUST = {
    "three known weights": _of(_three()),
    "three known weights, each transposed": _of(f"{THREE_TRANSPOSED}; return q, k, v"),
    "float16 and a symbolic number of rows": _of(_three(), "x: ('n', 4, 'float16')"),
    "an x with two batch dimensions": _of(f"{THREE_TRANSPOSED}; return q, k, v", "x: (2, 3, 4)"),
    "the products outside of a dataflow block": _of(_three(), dataflow=False),
    "the products in a private function": _of(
        "made = cls.inner(x)",
        functions=f"@private\ndef inner(x: (3, 4)): {THREE_TRANSPOSED}; return q, k, v",
    ),
    "products of two tensors in turns": _of(
        f"""
{CHANGED}
q = R.matmul(x, a4x2); q_of_y = R.matmul(y, b4x2)
k = R.matmul(x, a4x5); k_of_y = R.matmul(y, b4x5)
v = R.matmul(x, a4x4); v_of_y = R.matmul(y, b4x4)
return q, q_of_y, k, k_of_y, v, v_of_y
"""
    ),
    "transposes whose axes count from the end": _of(_permuted([-1, -2], [-1, 0], [1, -2])),
    "one tensor under two names": _of(
        "y = x; q = R.matmul(x, a4x2); k = R.matmul(y, b4x5); v = R.matmul(x, c4x4); return q, k, v"
    ),
    "a tensor whose first name ends with its dataflow block": _of(
        f"""
with R.dataflow():
    twice = R.add(first, first)
    x = twice
    R.output(x)
{_three()}
""",
        "first: (3, 4)",
    ),
    "weights that are known, and weights that are passed, in turns": _of(
        """
q = R.matmul(x, a4x2); k = R.matmul(x, a); v = R.matmul(x, b4x5)
w = R.matmul(x, b); y = R.matmul(x, c4x4); z = R.matmul(x, c)
return q, k, v, w, y, z
""",
        PASSED,
    ),
}
# where combining is wrong, or costs more than it saves
STAYS = {
    "weights that are parameters": _of(
        "q = R.matmul(x, a); k = R.matmul(x, b); v = R.matmul(x, c); return q, k, v", PASSED
    ),
    "a bias behind each product": _of(_behind_each("@_out = R.add(@, a#)")),
    "a bias behind another name of each product": _of(
        _behind_each("@_again = @; @_out = R.add(@_again, a#)")
    ),
    "a bias behind another name of another name of each product": _of(
        _behind_each("@_again = @; @_more = @_again; @_out = R.add(@_more, a#)")
    ),
    "a bias behind a match_cast of each product": _of(
        _behind_each(
            "@_cast = R.match_cast(@, R.Tensor((3, #), 'float32')); @_out = R.add(@_cast, a#)"
        )
    ),
    "a bias behind a permute_dims of each product that permutes nothing": _of(
        _behind_each("@_same = R.permute_dims(@, [0, 1]); @_out = R.add(@_same, a#)")
    ),
    "a relu behind each product": _of(_behind_each("@_out = R.nn.relu(@)")),
    "an exp behind each product": _of(_behind_each("@_out = R.exp(@)")),
    "a call of a kernel behind each product": _of(
        _behind_each("@_out = R.tanh(@)"),
        changed_by=relax.transform.LegalizeOps(skip_ops=["relax.matmul"]),
    ),
    "a result that is not used": _of(_three(returned="q, k")),
    "a result that only an unused value needs": _of(
        _three("more = R.reshape(v, (3, 2, 2))", returned="q, k")
    ),
    "a result of which an unused value is made in two steps": _of(
        _three("flat = R.reshape(v, (12,)); more = R.reshape(flat, (4, 3))", returned="q, k")
    ),
    "a result that only an unused match_cast needs": _of(
        _three(
            "flat = R.reshape(v, (12,)); cast = R.match_cast(flat, R.Tensor((12,), 'float32'))",
            returned="q, k",
        )
    ),
    "a result that only an unused call of a pure function needs": _of(
        _three("more = R.reshape(v, (4, 3)); unused = cls.pure(more)", returned="q, k"),
        functions="@private\ndef pure(a: (4, 3)): out = R.tanh(a)",
    ),
    "a tuple of the results of which one is not taken": _of(
        _three("made = (q, k, v); first = made[0]; second = made[1]", returned="first, second")
    ),
    "results of two dtypes": _of(
        """
q = R.matmul(x, a4x2); k = R.matmul(x, b4x2, out_dtype="float32")
v = R.matmul(x, c4x2); w = R.matmul(x, d4x2, out_dtype="float32")
return q, k, v, w
""",
        "x: (3, 4, 'float16')",
    ),
    "weights that two tensors are multiplied by": _of(
        f"""
{THREE}
{CHANGED}
q_of_y = R.matmul(y, a4x2); k_of_y = R.matmul(y, b4x5); v_of_y = R.matmul(y, c4x4)
return q, k, v, q_of_y, k_of_y, v_of_y
"""
    ),
    "a transposed weight that another product reads": _of(
        f"{THREE_TRANSPOSED}; more = R.matmul(y, ct); return q, k, v, more", "x: (3, 4), y: (3, 4)"
    ),
    "a weight that an addition reads too": _of(
        _three("more = R.add(y, c4x4)", returned="q, k, v, more"), "x: (3, 4), y: (4, 4)"
    ),
    "a weight that another function reads too": _of(
        _three(), functions="def other(x: (3, 4)): out = R.matmul(x, c4x4)"
    ),
    "a weight that is returned": _of(_three(returned="q, k, v, c4x4"), dataflow=False),
    "weights of two dtypes": _of(
        """
q = R.matmul(x, ah4x2, out_dtype="float32"); k = R.matmul(x, b4x2); v = R.matmul(x, c4x2)
return q, k, v
"""
    ),
    "a weight without columns": _of(_three().replace("a4x2", "a4x0")),
    "two weights with the same numbers": _of(
        "q = R.matmul(x, a4x2); k = R.matmul(x, A4x2); v = R.matmul(x, c4x4); return q, k, v"
    ),
    "an update of x between the products": _of(
        CHANGED + _around(f"new = {UPDATE.format('y')}", "y"), functions=SHIFT_KERNEL
    ),
    "a call between the products of a function that updates x": _of(
        _around("new = cls.update(x)"), functions=SHIFT_KERNEL + UPDATE_FUNCTION
    ),
    "an update of x in a branch between the products": _of(
        _around(BRANCH), "x: (3, 4), choose: ('bool',)", functions=SHIFT_KERNEL, dataflow=False
    ),
    "an update of x in a branch of a branch between the products": _of(
        _around(f"if choose:\n{textwrap.indent(BRANCH, '    ')}else:\n    new = R.exp(x)"),
        "x: (3, 4), choose: ('bool',)",
        functions=SHIFT_KERNEL,
        dataflow=False,
    ),
    "a call between the products of an inner function that updates x": _of(
        _around(
            f"""
@R.function
def inner(a: R.Tensor((3, 4), "float32")) -> R.Tensor((3, 4), "float32"):
    new = {UPDATE.format("a")}
    return new
new: R.Tensor((3, 4), "float32") = inner(x)
"""
        ),
        functions=SHIFT_KERNEL,
        dataflow=False,
    ),
    "an update of x under another name between the products": _of(
        f"{CHANGED}; z = {UPDATE.format('y')}" + _around(f"new = {UPDATE.format('y')}", "z"),
        functions=SHIFT_KERNEL,
    ),
    "an update of x by a packed function between the products": _of(
        _around(
            f"new = R.call_inplace_packed('{SHIFT}', x, inplace_indices=[0], "
            "ty_args=R.Tensor((3, 4), 'float32'))"
        )
    ),
    "an update of a result between the products": _of(
        """
q = R.matmul(x, a4x4); k = R.matmul(x, b4x5)
new = R.call_tir_inplace(cls.shift, (q,), [0], R.Tensor((3, 4), "float32"))
v = R.matmul(x, c4x4); w = R.matmul(x, d4x3)
return new, k, v, w
""",
        functions=SHIFT_KERNEL,
    ),
    "two tensors of one name": _of(
        f"""
{CHANGED}
q = R.matmul(x, a4x2); k = R.matmul(y, b4x5); v = R.matmul(x, c4x4); w = R.matmul(y, d4x3)
return q, k, v, w
""",
        changed_by=with_one_name,
    ),
    "a permute_dims that permutes nothing": _of(_permuted([0, 1], [0, 1], [0, 1]), "x: (4, 4)"),
    "weights that are vectors": _of(
        "q = R.matmul(x, a4); k = R.matmul(x, b4); v = R.matmul(x, c4); return q, k, v"
    ),
    "a vector times matrices": _of(_three(), "x: (4,)"),
    "weights with batches": _of(
        """
q = R.matmul(x, a2x4x2); k = R.matmul(x, b1x4x2); v = R.matmul(x, c2x4x2); w = R.matmul(x, d4x2)
return q, k, v, w
""",
        "x: (2, 3, 4)",
    ),
    "weights that are computed": _of(
        """
q = R.matmul(x, a4x4)
twice = R.add(b4x5, b4x5); k = R.matmul(x, twice)
small = R.tanh(q); v = R.matmul(x, small)
return q, k, v
""",
        "x: (4, 4)",
    ),
    "an x of unknown shape": _of(
        "out = R.matmul(x, a4x5)",
        functions="def other(x: R.Tensor(dtype='float32', ndim=2)): out = R.matmul(x, b4x2)",
    ),
    "weights with different numbers of rows": _of(
        "out = R.matmul(x, a4x5)",
        functions="def other(x: (3, 'm')): q = R.matmul(x, b4x2); k = R.matmul(x, c5x2); "
        "v = R.matmul(x, d4x2); return q, k, v",
    ),
}
CASES = MUST | STAYS


def layer(rows: Sequence[int], size: int = 256) -> tvm.IRModule:
    """For each number of rows a function rows_N(x), which multiplies x (N, size) by three weights (size, size)."""
    letters, text = iter(ascii_lowercase), ""
    for count in rows:
        text += f"def rows_{count}(x: ({count}, {size})):\n"
        for name in "qkv":
            text += f"    {name} = R.matmul(x, R.permute_dims({next(letters)}{size}x{size}))\n"
        text += "    return q, k, v\n"
    return relax_module(text, **known_weights(text))
