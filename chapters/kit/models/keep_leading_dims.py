"""Moves reshapes behind products, so that what follows a product in the model follows it in the graph.

Exporters write a linear layer on x (1, 7, 48) as

    rows = reshape(x, (7, 48))
    y = matmul(rows, permute_dims(w))
    out = reshape(add(b, y), (1, 7, 24))

and a product of two batches (1, 4, 7, 12) and (1, 4, 12, 7) with a batch of one dimension. The reshapes are free, but a
residual that is added to `out` can no longer be fused into the product, and a transpose before a reshape can no longer
be fused into it either. Here a product keeps the dimensions that its operands had before they were reshaped, and the
reshape comes after it. There it often meets the one that undoes it, and DropNoOps removes both.

One product keeps its reshapes: that of queries and keys, whose second batch is transposed. Without a reshape between
them FuseTransposeMatmul would make one kernel of transpose and product. On a CPU no schedule serves that kernel well:
chapter 5's need a constant matrix, and the rules that are left do not vectorize its sums.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm import relax, tirx
from tvm.ir import Expr, Op
from tvm.relax.dpl import is_op, wildcard

from chapters.kit.models.apply_rules import (
    Matched,
    apply_rules,
    either,
    known_shape,
    same,
)

TRANSPOSE = Op.get("relax.permute_dims")

A, B = wildcard(), wildcard()
LEFT = is_op("relax.reshape")(A, wildcard())
RIGHT = is_op("relax.reshape")(B, wildcard())
LINEAR = is_op("relax.matmul")(LEFT, B)
BATCHED = is_op("relax.matmul")(LEFT, RIGHT)
BIASED = either("relax.add", LEFT, B)
CONVERTED = is_op("relax.astype")(LEFT)  # as after each operator on float16


def keeps_rows(reshape: Expr, x: Expr, last: int) -> bool:
    """Whether `reshape` only regroups the dimensions of `x` before the `last` ones: each row stays a row."""
    old, new = known_shape(x), known_shape(reshape)
    if old is None or new is None or min(len(old), len(new)) < last:
        return False
    rows = [prod(shape[:-last], start=tirx.IntImm("int64", 1)) for shape in (old, new)]
    return same([*old[-last:], rows[0]], [*new[-last:], rows[1]])


def move_linear(expr: Expr, found: Matched) -> Expr:
    """matmul(reshape(a), b) as reshape(matmul(a, b)), for a matrix b."""
    a, b, left = (found[part] for part in (A, B, LEFT))
    if b.ty.ndim != 2 or not keeps_rows(left, a, 1) or known_shape(expr) is None:
        return expr
    return relax.op.reshape(relax.op.matmul(a, b, expr.attrs.out_dtype), known_shape(expr))


def move_batch(expr: Expr, found: Matched) -> Expr:
    """matmul(reshape(a), reshape(b)) as reshape(matmul(a, b)), for equal batch dimensions and a b not transposed.

    Equal before and after the reshapes: batches (6, 1) and (1, 6) of equal ones have 36 products.
    """
    a, b, left, right = (found[part] for part in (A, B, LEFT, RIGHT))
    if not keeps_rows(left, a, 2) or not keeps_rows(right, b, 2) or known_shape(expr) is None:
        return expr
    if isinstance(b, relax.Call) and b.op == TRANSPOSE:
        return expr
    if not all(same(known_shape(m)[:-2], known_shape(n)[:-2]) for m, n in ((a, b), (left, right))):
        return expr
    return relax.op.reshape(relax.op.matmul(a, b, expr.attrs.out_dtype), known_shape(expr))


def move_bias(expr: Expr, found: Matched) -> Expr:
    """add(reshape(a), b) as reshape(add(a, b)), for a b with one number per column."""
    a, b, left = (found[part] for part in (A, B, LEFT))
    if (
        b.ty.ndim != 1
        or not keeps_rows(left, a, 1)
        or not same(known_shape(expr), known_shape(left))
    ):
        return expr
    return relax.op.reshape(relax.op.add(a, b), known_shape(expr))


def move_conversion(expr: Expr, found: Matched) -> Expr:
    """astype(reshape(a)) as reshape(astype(a))."""
    if known_shape(expr) is None:
        return expr
    return relax.op.reshape(relax.op.astype(found[A], expr.attrs.dtype), known_shape(expr))


@tvm.transform.module_pass(opt_level=0, name="KeepLeadingDims")
class KeepLeadingDims:
    """Moves reshapes of rows and batches behind the products, biases and conversions after them, in dataflow blocks."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        products = [(BATCHED, move_batch), (LINEAR, move_linear)]
        return apply_rules(mod, [*products, (BIASED, move_bias), (CONVERTED, move_conversion)])
