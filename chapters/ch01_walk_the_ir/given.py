"""What chapter 1 provides: names of calls, sizes of tensors, lowering to kernels, the module of exercise 1.6 and the
careless pass of exercise 1.7.
"""

from collections.abc import Sequence
from dataclasses import replace

import tvm
from tvm import relax
from tvm.ir import GlobalVar, Op
from tvm.relax.dpl import is_op, rewrite_call, wildcard
from tvm.relax.expr_functor import PyExprVisitor

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.relax_effects import calls_of_module
from chapters.kit.measure.scoreboard import Row
from chapters.kit.passes.planned_storage import evaluate

# --- calls ----------------------------------------------------------------------------------------


def call_name(call: relax.Call) -> str:
    """Return a name for what `call` calls.

    An operator: "relax.matmul". An operator whose first argument is the function to run:
    "relax.call_tir:matmul1". A function of the module: "@helper". A packed function: "packed:name".
    Anything else, such as a function held in a variable: "closure".
    """
    callee = call.op
    if isinstance(callee, Op):
        target = _function_name(call.args[0]) if call.args else ""
        return f"{callee.name}:{target}" if target else callee.name
    name = _function_name(callee)
    if not name:
        return "closure"
    return f"@{name}" if isinstance(callee, GlobalVar) else f"packed:{name}"


def _function_name(expr: relax.Expr) -> str:
    if isinstance(expr, GlobalVar):
        return expr.name_hint
    return str(expr.global_symbol) if isinstance(expr, relax.ExternFunc) else ""


class CallVisitor(PyExprVisitor):
    """Visits every call except those in shapes, which compute sizes and run no operator.

    A subclass defines `visit_call_`.
    """

    def visit_shape_expr_(self, shape: relax.ShapeExpr) -> None:
        """Do not visit the dimensions."""


# --- bytes ----------------------------------------------------------------------------------------

# Operators that run no kernel: the result is the same memory, or only its shape.
FREE = frozenset(
    "relax." + name
    for name in ("reshape", "expand_dims", "squeeze", "flatten", "memory.view", "shape_of")
)


class BindingVisitor(PyExprVisitor):
    """Calls `self.note(var, value)` for each binding it visits, and then goes on into the value.

    A binding is `var = value` or `var = R.match_cast(value, type)`. A subclass defines `note`.
    """

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self.note(binding.var, binding.value)
        super().visit_var_binding_(binding)

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        self.note(binding.var, binding.value)
        super().visit_match_cast_(binding)


def extents(ty: relax.TensorType, sizes: dict[str, int]) -> list[int]:
    """Return the dimensions of a tensor as numbers. `sizes` gives each symbolic variable's value by name.

    Raises ValueError for a variable that `sizes` lacks, and for a tensor of unknown shape.
    """
    if not isinstance(ty.shape, relax.ShapeExpr):
        raise ValueError(f"{ty} has no known shape, so its bytes cannot be counted.")
    return [evaluate(extent, sizes) for extent in ty.shape]


def element_bits(ty: relax.TensorType) -> int:
    """Return the bits of one element, with all lanes of a vector such as float32x4; ValueError without a dtype."""
    if ty.dtype is None:
        raise ValueError(f"{ty} has no known dtype, so its bytes cannot be counted.")
    return ty.dtype.dtype.bits * ty.dtype.dtype.lanes


def weighed(row: Row, traffic: Sequence) -> Row:
    """Return the scoreboard's `row` with the bytes that all entries of `traffic` read and write, added up."""
    return replace(row, read=sum(t.read for t in traffic), written=sum(t.written for t in traffic))


# --- kernels --------------------------------------------------------------------------------------


def to_kernels(mod: tvm.IRModule) -> tvm.IRModule:
    """Return `mod` with each operator replaced by a call of a kernel, as the compiler's pipeline does.

    The three operators in `LAUNCHING` call kernels. An operator that changes only the shape becomes
    `relax.reshape`, a view of the same memory, if it is inside a dataflow block and its result does
    not leave the block. Elsewhere it becomes a kernel that copies. Raises ValueError for an operator
    that cannot be replaced, such as one on tensors of unknown shape.
    """
    lowered = relax.transform.RewriteDataflowReshape()(relax.transform.LegalizeOps()(mod))
    for call in calls_of_module(lowered):
        is_operator = isinstance(call.op, Op) and call.op.name not in FREE
        if is_operator and call.op.get_attr("FLegalize") is not None:
            given = ", ".join(str(arg.ty) for arg in call.args)
            raise ValueError(
                f"{call.op.name} on ({given}) was not lowered to a kernel, so its launches cannot be "
                "counted: give its tensors a known shape, symbolic or not."
            )
    return lowered


# --- exercises 1.6 and 1.7 ------------------------------------------------------------------------


# The module whose launches you predict in exercise 1.6.
Small = relax_module("""
def main(x: (2, 3, 8), w: (8, 8)):
    rows = R.reshape(x, (6, 8))
    wt = R.permute_dims(w)
    y = R.matmul(rows, wt)
    twice = R.add(y, y)
    thrice = R.add(twice, y)
    halves = R.split(thrice, 2, axis=1)
    _unused = R.exp(halves[1])
    blocks = R.reshape(halves[0], (2, 3, 4))
    out = R.nn.relu(blocks)
""")


@tvm.transform.module_pass(opt_level=0, name="DropAnyDoubleTranspose")
class DropAnyDoubleTranspose:
    """A careless pass: it drops every two transposes in a row, whatever their axes.

    Its pattern names two operators and none of their attributes. You break it in exercise 1.7.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        """Return a new module; `mod` is left as it was."""
        x = wildcard()
        pair = is_op("relax.permute_dims")(is_op("relax.permute_dims")(x))
        result = mod.clone()
        for name, func in mod.functions_items():
            if isinstance(func, relax.Function):
                result[name] = rewrite_call(pair, lambda _, matched: matched[x], func)
        return result
