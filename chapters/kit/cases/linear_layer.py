"""The module of a linear layer, as a model defines it."""

from __future__ import annotations

from tvm.ir import IRModule

from chapters.kit.cases.relax_text import relax_module


def linear_layer(rows: int, n: int, k: int) -> IRModule:
    """main(x, w) = matmul(x, permute_dims(w)) in float32, for x of shape (rows, k) and w of shape (n, k)."""
    return relax_module(f"""
def main(x: ({rows}, {k}), w: ({n}, {k})):
    lv = R.permute_dims(w)
    gv = R.matmul(x, lv)
""")
