"""The program of chapter 8: x times w transposed plus a bias, as a linear layer computes it, not yet scheduled."""

from __future__ import annotations

from tvm import tirx

from chapters.kit.ir.product_and_bias import product_and_bias


def matmul_bias(m: int, n: int, k: int, dtype: str = "float16") -> tirx.PrimFunc:
    """D = A @ B.T + C for A (m, k) and B (n, k) of `dtype`, C (n,) and D (m, n) float32; blocks `matmul` and `bias`.

    Products are summed in float32, whatever the dtype.
    """
    return product_and_bias(((m, k), dtype), ((n, k), dtype), ((n,), "float32"))
