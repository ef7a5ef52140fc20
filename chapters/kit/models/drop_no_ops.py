"""Removes operators that change nothing, of which an exported graph is full, so that patterns need not look past them.

Exporters broadcast a tensor to the shape it has, convert it to the dtype it has, and reshape it there and back. They
also repeat a matrix for each batch that it is multiplied with, which matmul does without a copy.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import is_op, wildcard
from tvm_ffi import structural_equal

from chapters.kit.models.apply_rules import Matched, apply_rules, known_shape, same

X = wildcard()
RESHAPED = is_op("relax.reshape")(X, wildcard())
THERE_AND_BACK = is_op("relax.reshape")(is_op("relax.reshape")(X, wildcard()), wildcard())
BROADCAST = is_op("relax.broadcast_to")(X, wildcard())
CONVERTED = is_op("relax.astype")(X)
MATRIX = wildcard()
REPEATED = is_op("relax.matmul")(X, is_op("relax.broadcast_to")(MATRIX, wildcard()))


def drop_no_op(expr: Expr, found: Matched) -> Expr:
    """x in place of an operator on x, if the result has the type of x: the same shape and dtype."""
    return found[X] if structural_equal(expr.ty, found[X].ty) else expr


def drop_repeat(expr: Expr, found: Matched) -> Expr:
    """matmul(x, w) in place of the product with w repeated for each batch, if w is a matrix and x has all batches."""
    x, w = found[X], found[MATRIX]
    shapes = [known_shape(one) for one in (x, w, expr)]
    if None in shapes or len(shapes[1]) != 2 or not same(shapes[0][:-1], shapes[2][:-1]):
        return expr
    return relax.op.matmul(x, w, expr.attrs.out_dtype)


@tvm.transform.module_pass(opt_level=0, name="DropNoOps")
class DropNoOps:
    """Removes conversions, broadcasts, reshapes and pairs of reshapes that change nothing, in dataflow blocks."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        patterns = (CONVERTED, BROADCAST, THERE_AND_BACK, RESHAPED)
        rules = [(pattern, drop_no_op) for pattern in patterns]
        return apply_rules(mod, [*rules, (REPEATED, drop_repeat)])
