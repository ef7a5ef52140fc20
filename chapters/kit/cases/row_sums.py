"""The program of chapter 5's puzzles: the sums of a matrix's rows."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T


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
