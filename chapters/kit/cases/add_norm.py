"""An add and its RMSNorm; every decoder layer has two such pairs."""

from __future__ import annotations

from collections.abc import Sequence

import tvm

from chapters.kit.cases.relax_text import relax_module


def unfused(
    shape: Sequence[int | str], dtype: str = "float16", epsilon: float = 1e-5
) -> tvm.IRModule:
    """main(x1, x2, weight) -> (norm, total): total = x1 + x2 of `shape`, norm = rms_norm(total, weight).

    A text in `shape` is a symbolic dimension of that name.
    """
    wide, row = (*shape, dtype), (shape[-1], dtype)
    text = f"""
def main(x1: {wide}, x2: {wide}, weight: {row}):
    lv = R.add(x1, x2)
    lv1 = R.nn.rms_norm(lv, weight, axes=[-1], epsilon=epsilon)
    gv = (lv1, lv)
"""
    return relax_module(text, epsilon=epsilon)
