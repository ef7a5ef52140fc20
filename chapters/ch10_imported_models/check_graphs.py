"""Graphs as importers write them, as text with edits: norms in several spellings, and graphs that resemble one."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.relax_effects import calls_in

NORM = """
def main(x: (3, 8), w: (8,)):
    square = R.power(x, R.const(2.0))
    mean = R.mean(square, axis=[-1], keepdims=True)
    total = R.add(mean, R.const(0.01))
    scale = R.rsqrt(total)
    normalized = R.multiply(x, scale)
    out = R.multiply(normalized, w)
"""


def in_dtype(dtype: str) -> tuple[str, ...]:
    """The edits that give every tensor of NORM this dtype."""
    return (
        "8)",
        f"8, '{dtype}')",
        "8,)",
        f"8, '{dtype}')",
        ".0)",
        f".0, '{dtype}')",
        ".01)",
        f".01, '{dtype}')",
    )


SPELLINGS = {  # how a line may read
    "x * x": ("R.power(x, R.const(2.0))", "R.multiply(x, x)"),
    "square": ("R.power(x, R.const(2.0))", "R.square(x)"),
    "axis 1": ("axis=[-1]", "axis=[1]"),
    "epsilon first": ("R.add(mean, R.const(0.01))", "R.add(R.const(0.01), mean)"),
    "power -0.5": ("R.rsqrt(total)", "R.power(total, R.const(-0.5))"),
    "scale first": ("R.multiply(x, scale)", "R.multiply(scale, x)"),
    "divided": ("R.rsqrt(total)", "R.sqrt(total)", "R.multiply(x, scale)", "R.divide(x, scale)"),
    "weight first": ("R.multiply(normalized, w)", "R.multiply(w, normalized)"),
    "weight + 1": ("R.multiply(normalized, w)", "R.multiply(normalized, R.add(w, R.const(1.0)))"),
    "3 dimensions": ("(3, 8)", "(2, 3, 8)", "axis=[-1]", "axis=[2]"),
    "symbolic rows": ("(3, 8)", "('n', 8)"),
    "epsilon 0": ("R.const(0.01)", "R.const(0.0)"),
}
OTHERS = {  # what looks like a norm and is not, or what rms_norm would compute with other numbers
    "one row": ("(3, 8)", "(8,)", "axis=[-1]", "axis=[0]"),
    "mean over rows": ("axis=[-1]", "axis=[0]"),
    "mean over all": ("axis=[-1]", "axis=[0, 1]"),
    "mean without axis": ("axis=[-1], ", ""),
    "no keepdims": ("(3, 8)", "(8, 8)", "keepdims=True", "keepdims=False"),
    "sum": ("R.mean", "R.sum"),
    "max": ("R.mean", "R.max"),
    "power 3": ("R.const(2.0)", "R.const(3.0)"),
    "power of 2": ("R.power(x, R.const(2.0))", "R.power(R.const(2.0), x)"),
    "no power": ("R.power(x, R.const(2.0))", "R.abs(x)"),
    "square of another": ("R.power(x, R.const(2.0))", "R.multiply(x, R.tanh(x))"),
    "norm of another": ("R.multiply(x, scale)", "R.multiply(R.tanh(x), scale)"),
    "not centred": ("R.power(x,", "R.power(R.subtract(x, R.mean(x, axis=[-1], keepdims=True)),"),
    "no epsilon": ("R.rsqrt(total)", "R.rsqrt(mean)"),
    "epsilon outside": ("R.add(mean, R.const(0.01))", "mean", "R.rsqrt(total)", "R.add(R.rsqrt(total), R.const(0.01))"),
    "epsilon subtracted": ("R.add(mean,", "R.subtract(mean,"),
    "epsilon computed": ("R.const(0.01)", "R.max(w)"),
    "epsilon per column": ("R.const(0.01)", "R.broadcast_to(R.const(0.01), R.shape([8]))"),
    "a constant epsilon per column": ("R.const(0.01)", "R.const([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08])"),
    "epsilon adds a dimension": ("R.const(0.01)", "R.const([[[0.01]]])"),
    "sqrt": ("R.rsqrt(total)", "R.sqrt(total)"),
    "power 0.5": ("R.rsqrt(total)", "R.power(total, R.const(0.5))"),
    "divided the other way": ("R.rsqrt(total)", "R.sqrt(total)", "R.multiply(x, scale)", "R.divide(scale, x)"),
    "no columns": ("(3, 8)", "(3, 0)", "(8,)", "(0,)"),
    "symbolic columns": ("(3, 8)", "(3, 'n')", "(8,)", "('n',)"),
    "an unknown shape": ("x: (3, 8)", "x: R.Tensor('float32', ndim=2)"),
    "float64": in_dtype("float64"),
    "all in float16": in_dtype("float16"),
}  # fmt: skip


def edited(text: str, *pairs: str) -> tvm.IRModule:
    """The module of `text`, in which each first of two strings is replaced by the second."""
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    return relax_module(text)


def names(mod: tvm.IRModule) -> list[str]:
    """The operators of main, in order."""
    return [call.op.name.removeprefix("relax.") for call in calls_in(mod["main"])]


# --- products with a constant ---------------------------------------------------------------------

STORED = np.random.default_rng(1).standard_normal((3, 5)).astype("float32")  # as GPT-2 stores it
X = "x: (2, 4, 3)"
LINEAR = {  # name: (parameters, the weight (k, n) in the text)
    "a constant": (X, "W"),
    "a vector of rows": ("x: (3,)", "W"),
    "symbolic rows": ("x: ('n', 3)", "W"),
    "transposed twice": (X, "R.permute_dims(R.permute_dims(W))"),
    "einsum": (
        "x: (1, 4, 3)",
        "R.reshape(R.permute_dims(R.permute_dims(R.expand_dims(R.expand_dims(W, 2), 3), [2, 3, 1, 0]),"
        " [3, 2, 0, 1]), (1, 3, 5))",
    ),
    "squeezed": (X, "R.squeeze(R.reshape(W, (1, 3, 5)), 0)"),
}
NO_LINEAR = {  # name: (parameters, a product that stays as it is)
    "a linear layer": (X, "R.matmul(x, R.permute_dims(R.const([[1.0, 2, 3], [4, 5, 6]])))"),
    "a parameter": (f"{X}, w: (3, 5)", "R.matmul(x, w)"),
    "the constant first": ("x: (5, 2)", "R.matmul(W, x)"),
    "a vector": (X, "R.matmul(x, R.const([1.0, 2.0, 3.0]))"),
    "several matrices": ("x: (2, 4, 2)", "R.matmul(x, R.const([[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]]))"),
    "a matrix of higher rank": ("x: (4, 3)", "R.matmul(x, R.reshape(W, (1, 3, 5)))"),
    "integers": ("x: (4, 2, 'int32')", "R.matmul(x, R.const([[1, 2], [3, 4]], 'int32'))"),
    "computed": (X, "R.matmul(x, R.tanh(W))"),
}  # fmt: skip


def product_of(parameters: str, weight: str, *, whole: bool = False) -> tvm.IRModule:
    """x times `weight`, in which W is STORED; whole: `weight` is the whole product."""
    product = weight if whole else f"R.matmul(x, {weight})"
    text = f"def main({parameters}):\n    out = {product}"
    return relax_module(text, W=relax.const(STORED))
