"""Finds linear layers whose weight is a constant, and writes each as matmul(x, permute_dims(w)) with w (n, k).

FuseTransposeMatmul looks for this form, and the schedules for products expect it: each element of the result reads one
row of w. A weight that was stored for `x @ w`, as GPT-2 stores it, is (k, n); it is transposed once, when the model is
compiled. Between a weight and its product there may be reshapes and transposes, as `einsum` and `linear(x, w.T)` make
them; these too are done once.

A weight that is a parameter of the function stays in the layout in which the caller passes it.
"""

from __future__ import annotations

from math import prod

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import Expr, Op
from tvm.relax.dpl import is_const, is_op, wildcard

from chapters.kit.models.rewriting import Matched, apply_rules, known_shape

DTYPES = ("float16", "bfloat16", "float32", "float64")  # others may be packed, several to a byte
MOST_STEPS = 6  # operators between a constant and its product; einsum makes five
TRANSPOSE = Op.get("relax.permute_dims")

X, STORED = wildcard(), is_const()
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
PRODUCT = is_op("relax.matmul")(X, weight)


def transposed(expr: Expr, found: Matched) -> Expr:
    """The product with a constant matrix (k, n) as a product with a transposed constant (n, k)."""
    x, stored, steps = found[X], found[STORED], [found[step] for step in STEPS if step in found]
    is_linear = len(steps) == 1 and steps[0].op == TRANSPOSE and stored.ty.ndim == 2
    if is_linear or stored.ty.dtype not in DTYPES or not all(map(_has_numbers, steps)):
        return expr
    w = stored.value.numpy()
    for step in steps:
        if step.op == TRANSPOSE:
            axes = step.attrs.axes
            w = w.transpose(None if axes is None else [int(axis) for axis in axes])
        else:
            w = w.reshape([int(dim) for dim in step.ty.shape])
    if w.ndim < 2 or prod(w.shape[:-2]) != 1 or w.ndim > max(2, x.ty.ndim):
        return expr
    rows = np.ascontiguousarray(w.reshape(w.shape[-2:]).T)
    own = relax.op.permute_dims(relax.const(tvm.runtime.tensor(rows)))
    return relax.op.matmul(x, own, expr.attrs.out_dtype)


def _has_numbers(step: Expr) -> bool:
    """Whether the shape of `step` is known, dimension by dimension, without symbolic ones."""
    return all(isinstance(dim, tirx.IntImm) for dim in known_shape(step) or [None])


@tvm.transform.module_pass(opt_level=0, name="RecognizeLinear")
class RecognizeLinear:
    """Gives each product with a constant matrix, in a dataflow block, the form matmul(x, permute_dims(w))."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return apply_rules(mod, [(PRODUCT, transposed)])
