"""Quantized matmuls: the kernel that unpacks its own matrix, random operands, and how close results must be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import te, tirx

from chapters.kit.quantized.dequantize import int64s, kernel
from chapters.kit.quantized.weight_blocks import PackedLayout, QuantizedRows
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import nt_matmul
from solutions.ch11_a_real_model.quantized import joined

M = tirx.Var("m", "int64")  # a number of rows that only the call knows


def gated_epilogue(y, bias, gate, residual, _w) -> te.Tensor:
    """silu(y + bias) * gate + residual, in three blocks behind y."""
    with_bias = te.compute(y.shape, lambda *i: y(*i) + bias(i[-1]), "with_bias")
    silu = te.compute(y.shape, lambda *i: with_bias(*i) * te.sigmoid(with_bias(*i)), "silu")
    return te.compute(y.shape, lambda *i: silu(*i) * gate(*i) + residual(*i), "gated")


def quantized_matmul(
    form: PackedLayout, rows: tuple, *, n: int = 48, k: int = 96, behind: Callable | None = None
) -> tirx.PrimFunc:
    """The kernel (codes, scales, x, result), or (codes, scales, x, bias, gate, residual, result) with `behind`.

    behind: takes y, bias, gate, residual and the float matrix, and returns the result.
    """
    w, x = te.placeholder(int64s((n, k)), name="w"), te.placeholder(int64s((*rows, k)), name="x")
    y = nt_matmul(w, x, "float32")
    others = []
    if behind is not None:
        bias = te.placeholder(int64s([n]), name="bias")
        others = [bias, *(te.placeholder(y.shape, name=name) for name in ("gate", "residual"))]
    out = behind(y, *others, w) if behind else y
    return joined(kernel(form, (n, k)), te.create_prim_func([w, x, *others, out], "int64"))


def draw_quantized(form: PackedLayout, n: int = 48, k: int = 96) -> QuantizedRows:
    """Random codes, others for each n. Weights have both signs, and each group a scale and a minimum of its own."""
    random = np.random.default_rng([form.bits, n])
    scales = random.uniform(0.5, 1.5, (n, k // form.group)).astype(form.scale)
    minima = (-8 * random.uniform(0.5, 1.5, scales.shape)).astype(form.scale)
    codes = random.integers(0, 1 << form.bits, (n, k), "u1")
    return QuantizedRows(form.bits, codes, scales, minima if form.has_minimum else None)


def draw_rows(*shape: int) -> np.ndarray:
    """Normal numbers; the rows differ in size by up to a factor of 100."""
    random = np.random.default_rng(sum(shape))
    sizes = 10 ** random.uniform(-1, 1, (*shape[:-1], 1))
    return (random.standard_normal(shape) * sizes).astype("float32")


def assert_close(found: np.ndarray, exact: np.ndarray, more: np.ndarray | float = 0.0) -> None:
    """Each result is within 1e-5 of the largest one of its row, and `more`."""
    allowed = 1e-5 * np.abs(exact).max(axis=-1, keepdims=True) + more
    wrong = ~(np.abs(found - exact) <= allowed)  # a NaN is wrong
    assert not wrong.any(), (found[wrong][:5], exact[wrong][:5])
    assert found.shape == exact.shape and found.dtype == np.float32
