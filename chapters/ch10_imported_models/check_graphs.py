"""Graphs that resemble a norm, as text with edits; and norms in which several spellings meet."""

from __future__ import annotations

from chapters.ch10_imported_models.exported_norms import SPELLINGS


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


MIXED = (  # every two spellings of different steps meet in one graph
    ("x * x", "epsilon first", "divided"),
    ("square", "one over the root", "3 dimensions"),
    ("x * x", "sum over count", "power -0.5", "weight first"),
    ("x * x", "epsilon first", "sum over count", "one over the root", "scale first"),
    ("square", "sum over count", "divided"),
    ("square", "epsilon first", "power -0.5", "scale first"),
)
COUNTED = SPELLINGS["sum over count"]
FIVE = ("(3, 8)", "(2, 1, 7, 5)", "(8,)", "(5,)", "R.const(0.01)", "R.const(0.125)")
SIZES = {  # the sizes and the epsilon of another norm
    "4 dimensions and epsilon 0.125": FIVE,
    "4 dimensions and a sum over count": (*FIVE, *COUNTED, "R.const(8.0)", "R.const(5.0)"),
}
OTHERS = {  # what looks like a norm and is not, or what rms_norm would compute with other numbers
    "one row": ("(3, 8)", "(8,)", "axis=[-1]", "axis=[0]"),
    "mean over rows": ("(3, 8)", "(2, 3, 8)", "axis=[-1]", "axis=[1]"),
    "sum over rows": (*COUNTED, "axis=[-1]", "axis=[0]"),
    "mean over all": ("axis=[-1]", "axis=[0, 1]"),
    "mean without axis": ("axis=[-1], ", ""),
    "no keepdims": ("(3, 8)", "(8, 8)", "keepdims=True", "keepdims=False"),
    "no keepdims of a sum": (*COUNTED, "(3, 8)", "(8, 8)", "keepdims=True", "keepdims=False"),
    "sum": ("R.mean", "R.sum"),
    "max": ("R.mean", "R.max"),
    "power 3": ("R.const(2.0)", "R.const(3.0)"),
    "power 2.5": ("R.const(2.0)", "R.const(2.5)"),
    "power 4": ("R.const(2.0)", "R.const(4.0)"),
    "power -2": ("R.const(2.0)", "R.const(-2.0)"),
    "an exponent per column": ("R.const(2.0)", "R.const([2.0, 3.0, 2.0, 3.0, 2.0, 3.0, 2.0, 3.0])"),
    "count over the sum": ("R.mean(square", "R.sum(square", "R.add(mean", "R.add(R.divide(R.const(8.0), mean)"),
    "sum times count": ("R.mean(square", "R.sum(square", "R.add(mean", "R.add(R.multiply(mean, R.const(8.0))"),
    "sum over the number of rows": (*COUNTED, "R.const(8.0)", "R.const(3.0)"),
    "two over the root": ("R.rsqrt(total)", "R.divide(R.const(2.0), R.sqrt(total))"),
    "power of 2": ("R.power(x, R.const(2.0))", "R.power(R.const(2.0), x)"),
    "no power": ("R.power(x, R.const(2.0))", "R.abs(x)"),
    "square of another": ("R.power(x, R.const(2.0))", "R.multiply(x, R.tanh(x))"),
    "norm of another": ("R.multiply(x, scale)", "R.multiply(R.tanh(x), scale)"),
    "quotient of another": (*SPELLINGS["divided"], "R.divide(x, scale)", "R.divide(R.tanh(x), scale)"),
    "divided by the scale": ("R.multiply(x, scale)", "R.divide(x, scale)"),
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
