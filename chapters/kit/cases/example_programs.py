"""The programs that lessons and tests begin with: a matrix product with a bias, a linear layer, an add and its norm."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import IRModule
from tvm.script import tirx as T

from chapters.kit.cases.relax_text import relax_module
from chapters.kit.ir.product_and_bias import product_and_bias


def matmul_bias(m: int, n: int, k: int) -> tirx.PrimFunc:
    """D = A @ B.T + C for A (m, k) and B (n, k) int8, C and D (m, n) int32; blocks `matmul` and `bias`."""
    return product_and_bias(((m, k), "int8"), ((n, k), "int8"), ((m, n), "int32"))


def linear_bias(m: int, n: int, k: int, dtype: str = "float16") -> tirx.PrimFunc:
    """D = A @ B.T + C for A (m, k) and B (n, k) of `dtype`, C (n,) and D (m, n) float32; blocks `matmul` and `bias`.

    Products are summed in float32, whatever the dtype.
    """
    return product_and_bias(((m, k), dtype), ((n, k), dtype), ((n,), "float32"))


def row_sums(rows: int, columns: int) -> tirx.PrimFunc:
    """total[i] = the sum over k of A[i, k], for A (rows, columns) int32; one block, `total`, in the loops i and k."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((rows, columns), "int32"), total: T.Buffer((rows,), "int32")):
        T.func_attr({"tirx.noalias": True})
        for i, k in T.grid(rows, columns):
            with T.sblock("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    total[vi] = T.int32(0)
                total[vi] = total[vi] + A[vi, vk]

    return main.with_attr("global_symbol", "main")


def linear_layer(rows: int, n: int, k: int) -> IRModule:
    """main(x, w) = matmul(x, permute_dims(w)) in float32, for x of shape (rows, k) and w of shape (n, k)."""
    return relax_module(f"""
def main(x: ({rows}, {k}), w: ({n}, {k})):
    lv = R.permute_dims(w)
    gv = R.matmul(x, lv)
""")


def unfused_add_norm(
    shape: Sequence[int | str], dtype: str = "float16", epsilon: float = 1e-5
) -> IRModule:
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
