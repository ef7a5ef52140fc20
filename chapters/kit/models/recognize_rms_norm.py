"""Finds RMSNorm in an imported graph, where exporters write it as five operators or more.

    square = power(x, 2)                                or x * x
    scale = rsqrt(mean(square, axis=-1) + epsilon)      or power(…, -0.5), or x is divided by sqrt(…)
    out = w * (x * scale)                               with the factors in any order

Three rules, each right by itself:

1. x * scale is rms_norm(x, ones), in float32. In other dtypes it is not: rms_norm computes in float32 whatever x is.
2. w * rms_norm(x, ones) is rms_norm(x, w), in float32. In float16 the norm is rounded before w multiplies it, and
   rms_norm(x, w) rounds once, after the product. The numbers differ, so the product stays.
3. astype(rms_norm(astype(x, float32), w), float16) is rms_norm in float16, which converts in the same two places. It
   needs a w in float16: ones, or what was converted to float32 for this norm.

None of them asks who else reads an intermediate result: what is still read stays.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Expr
from tvm.relax.dpl import is_const, is_op, wildcard
from tvm.relax.op.nn import rms_norm
from tvm_ffi import structural_equal

from chapters.kit.models.rewriting import (
    Matched,
    apply_rules,
    either,
    is_positive,
    known_shape,
    scalar,
)

X, WEIGHT = wildcard(), wildcard()
TWO, MINUS_HALF, EPSILON, ONES = is_const(), is_const(), is_const(), is_const()

# --- 1. the norm ----------------------------------------------------------------------------------

SQUARE = is_op("relax.power")(X, TWO) | is_op("relax.multiply")(X, X) | is_op("relax.square")(X)
MEAN = is_op("relax.mean")(SQUARE)
SUM = either("relax.add", MEAN, EPSILON)
SCALE = is_op("relax.rsqrt")(SUM) | is_op("relax.power")(SUM, MINUS_HALF)
DIVIDED = is_op("relax.divide")(X, is_op("relax.sqrt")(SUM))
NORMALIZED = either("relax.multiply", X, SCALE) | DIVIDED


def normalized(expr: Expr, found: Matched) -> Expr:
    """x * scale as rms_norm(x, ones), if the mean runs over the last axis and the constants are the formula's."""
    x, epsilon = found[X], scalar(found[EPSILON])
    shape = known_shape(x)
    formula = {TWO: 2.0, MINUS_HALF: -0.5}
    if (
        not shape
        or len(shape) < 2  # TVM cannot lower rms_norm of a vector
        or x.ty.dtype != "float32"
        or not is_positive(shape[-1])
        or not structural_equal(expr.ty, x.ty)
        or not found[MEAN].attrs.keepdims
        or not _is_last(found[MEAN].attrs.axis, len(shape))
        or any(scalar(found[key]) != value for key, value in formula.items() if key in found)
        or epsilon is None
    ):
        return expr
    return rms_norm(x, _ones(shape[-1], "float32"), [-1], epsilon)


def _is_last(axes: list[int] | None, rank: int) -> bool:
    return axes is not None and [int(axis) % rank for axis in axes] == [rank - 1]


def _ones(length: tvm.ir.Expr, dtype: tvm.ir.PrimType) -> Expr:
    """A weight that changes nothing."""
    return relax.const(np.ones(int(length)), str(dtype))


# --- 2. its weight --------------------------------------------------------------------------------

UNWEIGHTED = is_op("relax.nn.rms_norm")(X, ONES)
WEIGHTED = either("relax.multiply", WEIGHT, UNWEIGHTED)


def weighted(expr: Expr, found: Matched) -> Expr:
    """w * rms_norm(x, ones) as rms_norm(x, w), if w is float32 and has one element per column."""
    x, weight, ones, norm = (found[part] for part in (X, WEIGHT, ONES, UNWEIGHTED))
    if (
        x.ty.dtype != "float32"
        or not _is_last(norm.attrs.axes, x.ty.ndim)
        or not structural_equal(weight.ty, ones.ty)
        or not (ones.value.numpy() == 1).all()
    ):
        return expr
    return rms_norm(x, weight, [-1], norm.attrs.epsilon)


# --- 3. its dtype ---------------------------------------------------------------------------------

WIDE = is_op("relax.astype")(X)
NORM = is_op("relax.nn.rms_norm")(WIDE, is_op("relax.astype")(WEIGHT) | ONES)
ROUNDED = is_op("relax.astype")(NORM)


def rounded(expr: Expr, found: Matched) -> Expr:
    """The norm of a widened x, rounded to the dtype of x, as a norm of x itself."""
    x, norm, dtype = found[X], found[NORM], expr.ty.dtype
    narrow = str(dtype) in ("float16", "bfloat16") and x.ty.dtype == dtype
    if not narrow or norm.ty.dtype != "float32" or not _is_last(norm.attrs.axes, x.ty.ndim):
        return expr
    if WEIGHT in found:
        weight = found[WEIGHT] if found[WEIGHT].ty.dtype == dtype else None
    else:
        ones = found[ONES].value.numpy()
        weight = _ones(ones.size, dtype) if (ones == 1).all() else None
    return rms_norm(x, weight, [-1], norm.attrs.epsilon) if weight is not None else expr


@tvm.transform.module_pass(opt_level=0, name="RecognizeRMSNorm")
class RecognizeRMSNorm:
    """Replaces each RMSNorm that a dataflow block spells out by `relax.nn.rms_norm`, where numbers stay equal."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        rules = [(NORMALIZED, normalized), (WEIGHTED, weighted), (ROUNDED, rounded)]
        return apply_rules(mod, rules)
