"""The program of chapters 5 and 6: an int8 matrix product with 32-bit sums, and a block that adds a bias to it."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T


def matmul_bias(m: int, n: int, k: int) -> tirx.PrimFunc:
    """D = A @ B.T + C for A (m, k) and B (n, k) int8, C and D (m, n) int32; blocks `matmul` and `bias`."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((m, k), "int8"),
        B: T.Buffer((n, k), "int8"),
        C: T.Buffer((m, n), "int32"),
        D: T.Buffer((m, n), "int32"),
    ):
        T.func_attr({"tirx.noalias": True})
        temp = T.sblock_alloc_buffer((m, n), "int32")
        for i, j, p in T.grid(m, n, k):
            with T.sblock("matmul"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, p])
                with T.init():
                    temp[vi, vj] = T.int32(0)
                temp[vi, vj] = temp[vi, vj] + T.cast(A[vi, vk], "int32") * T.cast(
                    B[vj, vk], "int32"
                )
        for i, j in T.grid(m, n):
            with T.sblock("bias"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = temp[vi, vj] + C[vi, vj]

    return main.with_attr("global_symbol", "main")
