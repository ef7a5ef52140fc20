"""The program of chapter 8: x times w transposed plus a bias, as a linear layer computes it, not yet scheduled."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T


def matmul_bias(m: int, n: int, k: int, dtype: str = "float16") -> tirx.PrimFunc:
    """D = A @ B.T + C for A (m, k) and B (n, k) of `dtype`, C (n,) and D (m, n) float32; blocks `matmul` and `bias`.

    Products are summed in float32, whatever the dtype.
    """

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((m, k), dtype),
        B: T.Buffer((n, k), dtype),
        C: T.Buffer((n,), "float32"),
        D: T.Buffer((m, n), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        temp = T.sblock_alloc_buffer((m, n), "float32")
        for i, j, p in T.grid(m, n, k):
            with T.sblock("matmul"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, p])
                with T.init():
                    temp[vi, vj] = T.float32(0)
                temp[vi, vj] = temp[vi, vj] + T.cast(A[vi, vk], "float32") * T.cast(
                    B[vj, vk], "float32"
                )
        for i, j in T.grid(m, n):
            with T.sblock("bias"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = temp[vi, vj] + C[vj]

    return main.with_attr("global_symbol", "main")
