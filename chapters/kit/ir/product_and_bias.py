"""The program that chapters 5, 6 and 8 schedule: a matrix product, and a block that adds a bias to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T

Spec = tuple[tuple[int, ...], str]  # the shape and the dtype of a buffer


@lru_cache(maxsize=64)  # TVM parses it anew at each call, which takes a tenth of a second
def product_and_bias(
    a: Spec, b: Spec, c: Spec, weight: Callable[..., Expr] = lambda b, j, k: b[j, k]
) -> tirx.PrimFunc:
    """A PrimFunc on A, B, C and D: block `matmul` sums products in the dtype of C, block `bias` adds C and stores D.

    a, b, c: shape and dtype of A (m, k), of B, usually (n, k), and of C, either (m, n) or (n,), one number per column.
    weight(B, j, k): the element of B, or of a packed B, by which A[i, k] is multiplied in the sum [i, j].
    """
    (m, k), n, sums, of_columns = a[0], c[0][-1], c[1], len(c[0]) == 1

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer(*a), B: T.Buffer(*b), C: T.Buffer(*c), D: T.Buffer((m, n), sums)):
        T.func_attr({"tirx.noalias": True})
        temp = T.sblock_alloc_buffer((m, n), sums)
        for i, j, p in T.grid(m, n, k):
            with T.sblock("matmul"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, p])
                with T.init():
                    temp[vi, vj] = T.cast(0, sums)
                left, right = T.meta_var((A[vi, vk], weight(B, vj, vk)))
                temp[vi, vj] = temp[vi, vj] + T.cast(left, sums) * T.cast(right, sums)
        for i, j in T.grid(m, n):
            with T.sblock("bias"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = temp[vi, vj] + (C[vj] if of_columns else C[vi, vj])

    return main.with_attr("global_symbol", "main")
