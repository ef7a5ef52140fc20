"""Compares numbers that may be NaN as IEEE 754 and PyTorch do: NaN is not equal to anything, itself included."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call

from chapters.kit.ir.rebuild import replace_calls

EQUAL, NOT_EQUAL = (tvm.ir.Op.get(f"relax.{name}") for name in ("equal", "not_equal"))


@tvm.transform.module_pass(opt_level=0, name="CompareNan")
class CompareNan:
    """Makes `a != b` of floats `a != b or isnan(a) or isnan(b)`, and `a == a` of the same value `not isnan(a)`.

    On a CPU, TVM's `!=` of floats is false if one of them is NaN, and its simplifier makes `a != a` False and `a == a`
    True. Programs use both to find NaN. The module given stays as it is.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return replace_calls(mod, _compare)


def _compare(call: Call, builder: relax.BlockBuilder) -> relax.Expr:
    compares = call.op in (EQUAL, NOT_EQUAL)
    if not compares or "float" not in str(getattr(call.args[0].ty, "dtype", "")):
        return call
    a, b = call.args
    if call.op == EQUAL and not a.same_as(b):
        return call
    nan = builder.emit(relax.op.isnan(a))
    if call.op == EQUAL:
        return relax.op.logical_not(nan)
    if not a.same_as(b):
        nan = builder.emit(relax.op.logical_or(nan, builder.emit(relax.op.isnan(b))))
    return relax.op.logical_or(builder.emit(call), nan)
