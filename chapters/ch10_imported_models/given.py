"""What chapter 10 provides: patterns and rules beside your own, a careless pass, and the CUDA code of a kernel."""

from __future__ import annotations

from math import prod

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Expr, Op
from tvm.relax.dpl import is_const, is_op, wildcard
from tvm.relax.op.nn import rms_norm
from tvm.target import Target
from tvm_ffi import structural_equal

from chapters.kit.models.apply_rules import Matched, apply_rules, either, known_shape, scalar

# --- RMSNorm: its weight and its dtype ------------------------------------------------------------
#
# Two rules run after yours. The first: in float32, w * rms_norm(x, ones) is rms_norm(x, w). In float16 it is not. There
# the model rounds the norm before it multiplies by w, and rms_norm(x, w) rounds once, after the product; so the product
# stays. The second: astype(rms_norm(astype(x, float32), w), float16) is rms_norm in float16, which converts in the same
# two places. It needs a w in float16: ones, or a weight that was converted to float32 only for this norm.


def ones(length: Expr, dtype: str) -> Expr:
    """Return a constant weight of `length` ones."""
    return relax.const(np.ones(int(length)), dtype)


def is_last(axes: list[int] | None, rank: int) -> bool:
    """Whether `axes` are the last axis of a tensor of `rank` dimensions, and no other. False for None."""
    return axes is not None and [int(axis) % rank for axis in axes] == [rank - 1]


X, WEIGHT, ONES = wildcard(), wildcard(), is_const()
UNWEIGHTED = is_op("relax.nn.rms_norm")(X, ONES)
WEIGHTED = either("relax.multiply", WEIGHT, UNWEIGHTED)


def weighted(expr: Expr, found: Matched) -> Expr:
    """Return rms_norm(x, w) for w * rms_norm(x, ones), if w is float32 and has one element per column."""
    x, weight, ones_, norm = (found[part] for part in (X, WEIGHT, ONES, UNWEIGHTED))
    if (
        x.ty.dtype != "float32"
        or not is_last(norm.attrs.axes, x.ty.ndim)
        or not structural_equal(weight.ty, ones_.ty)
        or not (ones_.value.numpy() == 1).all()
    ):
        return expr
    return rms_norm(x, weight, [-1], norm.attrs.epsilon)


WIDE = is_op("relax.astype")(X)
NORM = is_op("relax.nn.rms_norm")(WIDE, is_op("relax.astype")(WEIGHT) | ONES)
ROUNDED = is_op("relax.astype")(NORM)


def rounded(expr: Expr, found: Matched) -> Expr:
    """Return a norm of x itself for the norm of a widened x that is rounded to the dtype of x."""
    x, norm, dtype = found[X], found[NORM], expr.ty.dtype
    narrow = str(dtype) in ("float16", "bfloat16") and x.ty.dtype == dtype
    if not narrow or norm.ty.dtype != "float32" or not is_last(norm.attrs.axes, x.ty.ndim):
        return expr
    if WEIGHT in found:
        weight = found[WEIGHT] if found[WEIGHT].ty.dtype == dtype else None
    else:
        values = found[ONES].value.numpy()
        weight = ones(values.size, str(dtype)) if (values == 1).all() else None
    return rms_norm(x, weight, [-1], norm.attrs.epsilon) if weight is not None else expr


RULES_AFTER_THE_NORM = [(WEIGHTED, weighted), (ROUNDED, rounded)]

# --- a pass that asks too little ------------------------------------------------------------------

LEFT, RIGHT, FACTOR, EXPONENT, ADDED = wildcard(), wildcard(), wildcard(), is_const(), is_const()
ANY_SQUARE = is_op("relax.power")(LEFT, EXPONENT) | is_op("relax.multiply")(LEFT, RIGHT)
ANY_SCALE = is_op("relax.rsqrt")(either("relax.add", is_op("relax.mean")(ANY_SQUARE), ADDED))
LIKE_A_NORM = either("relax.multiply", FACTOR, ANY_SCALE)


def hastily(expr: Expr, found: Matched) -> Expr:
    """Return rms_norm(factor, ones) for factor * scale, whenever TVM accepts such a norm. It asks nothing else."""
    factor, epsilon = found[FACTOR], scalar(found[ADDED])
    shape = known_shape(factor)
    fits = structural_equal(expr.ty, factor.ty) and len(shape or []) >= 2 and epsilon is not None
    if not fits or not isinstance(shape[-1], tirx.IntImm) or factor.ty.dtype != "float32":
        return expr
    return rms_norm(factor, ones(shape[-1], "float32"), [-1], epsilon)


@tvm.transform.module_pass(opt_level=0, name="CarelessRMSNorm")
class CarelessRMSNorm:
    """Replaces whatever looks like an RMSNorm: any product with rsqrt(mean(…) + a constant). Wrong on purpose."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return apply_rules(mod, [(LIKE_A_NORM, hastily)])


# --- products with a constant ---------------------------------------------------------------------

DTYPES = ("float16", "bfloat16", "float32", "float64")  # others may be packed, several to a byte
MOST_STEPS = 6  # operators between a constant and its product; einsum makes five
TRANSPOSE = Op.get("relax.permute_dims")

ROWS, STORED = wildcard(), is_const()
STEPS = []  # patterns of the operators between them, the first one first
weight = STORED
for _ in range(MOST_STEPS):
    STEPS.append(
        is_op("relax.permute_dims")(weight)
        | is_op("relax.expand_dims")(weight)
        | is_op("relax.squeeze")(weight)
        | is_op("relax.reshape")(weight, wildcard())
    )
    weight = STORED | STEPS[-1]
PRODUCT = is_op("relax.matmul")(ROWS, weight)


def constant_operand(found: Matched) -> np.ndarray | None:
    """Return the array that a match of PRODUCT multiplies x with: the constant after all reshapes and transposes.

    Returns None if the product already is matmul(x, permute_dims(constant)), or if the array cannot be computed here
    because its elements are packed or a size is symbolic.
    """
    stored, steps = found[STORED], [found[step] for step in STEPS if step in found]
    is_canonical = len(steps) == 1 and steps[0].op == TRANSPOSE and stored.ty.ndim == 2
    if is_canonical or stored.ty.dtype not in DTYPES or not all(map(_has_numbers, steps)):
        return None
    w = stored.value.numpy()
    for step in steps:
        if step.op == TRANSPOSE:
            axes = step.attrs.axes
            w = w.transpose(None if axes is None else [int(axis) for axis in axes])
        else:
            w = w.reshape([int(dim) for dim in step.ty.shape])
    return w


def _has_numbers(step: Expr) -> bool:
    """Whether all dimensions of `step` are numbers."""
    return all(isinstance(dim, tirx.IntImm) for dim in known_shape(step) or [None])


def is_one_matrix(w: np.ndarray) -> bool:
    """Whether `w` is one matrix (k, n). It may have leading dimensions of size 1."""
    return w.ndim >= 2 and prod(w.shape[:-2]) == 1


# --- the code for a GPU ---------------------------------------------------------------------------


def cuda_source(mod: tvm.IRModule, target: Target) -> str:
    """Return the CUDA C++ that TVM generates for a module of scheduled kernels. Needs no GPU and no CUDA toolkit."""
    return tvm.compile(mod, target).mod.imports[0].inspect_source()
