"""Compares numbers that may be NaN as IEEE 754 and PyTorch do: NaN is not equal to anything, itself included."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

EQUAL, NOT_EQUAL = (tvm.ir.Op.get(f"relax.{name}") for name in ("equal", "not_equal"))


@tvm.transform.module_pass(opt_level=0, name="CompareNan")
class CompareNan:
    """Makes `a != b` of floats `a != b or isnan(a) or isnan(b)`, and `a == a` of the same value `not isnan(a)`.

    On a CPU, TVM's `!=` of floats is false if one of them is NaN, and its simplifier makes `a != a` False and `a == a`
    True. Programs use both to find NaN. The module given stays as it is.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                result[gvar] = _Comparisons(mod).visit_expr(func)
        return result


@mutator
class _Comparisons(PyExprMutator):
    def visit_call_(self, call: Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op not in (EQUAL, NOT_EQUAL) or "float" not in str(
            getattr(call.args[0].ty, "dtype", "")
        ):
            return call
        a, b = call.args
        if call.op == EQUAL:
            return relax.op.logical_not(self._nan(a)) if a.same_as(b) else call
        nan = self._nan(a)
        if not a.same_as(b):
            nan = self.builder_.emit(relax.op.logical_or(nan, self._nan(b)))
        return relax.op.logical_or(self.builder_.emit(call), nan)

    def _nan(self, value: relax.Expr) -> relax.Expr:
        return self.builder_.emit(relax.op.isnan(value))
