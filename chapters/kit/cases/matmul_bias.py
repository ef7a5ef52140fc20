"""The program of chapters 5 and 6: an int8 matrix product with 32-bit sums, and a block that adds a bias to it."""

from __future__ import annotations

from tvm import tirx

from chapters.kit.ir.product_and_bias import product_and_bias


def matmul_bias(m: int, n: int, k: int) -> tirx.PrimFunc:
    """D = A @ B.T + C for A (m, k) and B (n, k) int8, C and D (m, n) int32; blocks `matmul` and `bias`."""
    return product_and_bias(((m, k), "int8"), ((n, k), "int8"), ((m, n), "int32"))
