"""RMSNorm as models spell it: `python -m chapters.ch10_imported_models.exported_norms` prints each as a graph."""

from __future__ import annotations

import tvm

from chapters.kit.cases.relax_text import relax_module

NORM = """
def main(x: (3, 8), w: (8,)):
    square = R.power(x, R.const(2.0))
    mean = R.mean(square, axis=[-1], keepdims=True)
    total = R.add(mean, R.const(0.01))
    scale = R.rsqrt(total)
    normalized = R.multiply(x, scale)
    out = R.multiply(normalized, w)
"""
# name: how a line of NORM may read
SPELLINGS = {
    "x * x": ("R.power(x, R.const(2.0))", "R.multiply(x, x)"),
    "square": ("R.power(x, R.const(2.0))", "R.square(x)"),
    "axis 1": ("axis=[-1]", "axis=[1]"),
    "epsilon first": ("R.add(mean, R.const(0.01))", "R.add(R.const(0.01), mean)"),
    "power -0.5": ("R.rsqrt(total)", "R.power(total, R.const(-0.5))"),
    "scale first": ("R.multiply(x, scale)", "R.multiply(scale, x)"),
    "divided": ("R.rsqrt(total)", "R.sqrt(total)", "R.multiply(x, scale)", "R.divide(x, scale)"),
    "one over the root": ("R.rsqrt(total)", "R.divide(R.const(1.0), R.sqrt(total))"),
    "sum over count": ("R.mean(square", "R.divide(R.sum(square", "keepdims=True)", "keepdims=True), R.const(8.0))"),
    "weight first": ("R.multiply(normalized, w)", "R.multiply(w, normalized)"),
    "weight + 1": ("R.multiply(normalized, w)", "R.multiply(normalized, R.add(w, R.const(1.0)))"),
    "3 dimensions": ("(3, 8)", "(2, 3, 8)", "axis=[-1]", "axis=[2]"),
    "symbolic rows": ("(3, 8)", "('n', 8)"),
    "epsilon 0": ("R.const(0.01)", "R.const(0.0)"),
}  # fmt: skip


def edit_module(text: str, *pairs: str) -> tvm.IRModule:
    """The module of `text`, in which each first of two strings is replaced by the second."""
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    return relax_module(text)


def main() -> None:
    """Print all graphs."""
    for name, edits in {"as exported": (), **SPELLINGS}.items():
        print(f"# {name}\n{edit_module(NORM, *edits)['main'].script()}\n")


if __name__ == "__main__":
    main()
