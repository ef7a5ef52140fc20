"""Writes squares and cubes as products: power(x, 3) is x * x * x.

GELU's approximation by tanh has a cube in it, which exporters write as a power. For each element of a power TVM calls
a function of the C library; two products take a small part of that time. PyTorch computes these two powers as products
too.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import is_const, is_op, wildcard

from chapters.kit.models.apply_rules import Matched, apply_rules, scalar

X, EXPONENT = wildcard(), is_const()
POWER = is_op("relax.power")(X, EXPONENT)


def expand_power(expr: Expr, found: Matched) -> Expr:
    """power(x, 2) or power(x, 3) as a product, for a floating-point x."""
    x, exponent = found[X], scalar(found[EXPONENT])
    if exponent not in (2, 3) or "float" not in str(x.ty.dtype):
        return expr
    square = relax.op.multiply(x, x)
    return square if exponent == 2 else relax.op.multiply(square, x)


@tvm.transform.module_pass(opt_level=0, name="ExpandPowers")
class ExpandPowers:
    """Replaces squares and cubes that are written as powers, in dataflow blocks, by products."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return apply_rules(mod, [(POWER, expand_power)])
