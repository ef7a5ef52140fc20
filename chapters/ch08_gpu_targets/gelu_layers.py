"""A linear layer with bias and GELU on a GPU, for `bench 8`: the fused kernels and baselines.

x (m, k), w (n, k) and bias (n,) give gelu(x @ w.T + bias), rounded to the dtype of x. GELU is the exact one, with erf.
Every implementation is a function of (x, w, bias) that returns (call, result), as in gpu_linear_bench.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T

from chapters.kit.bench import gpu_linear_bench
from chapters.kit.bench.gpu_clock import TUNED, keep_result, shared_bytes
from chapters.kit.bench.gpu_linear_bench import Layer
from chapters.kit.bench.gpu_tables import EAGER_GELU
from chapters.kit.gpu import mma, wgmma


def gelu(total: Expr) -> Expr:
    """The exact GELU, with erf, of a float32 expression."""
    half = T.float32(0.5)
    return total * (half + half * T.erf(total * T.float32(0.5**0.5)))


def make_kernel(layer: Layer, tile: mma.MmaTile | None = None) -> tirx.PrimFunc:
    """gelu(A @ B.T + C) for A (m, k), B (n, k) and the result of the layer's dtype, C (n,) float32, by `mma.sync`.

    The sums start from the bias, and GELU is applied to them in registers. tile: by default the largest that fits.
    """
    m, n, k, dtype = layer.m, layer.n, layer.k, layer.dtype
    tile = tile or mma.choose_tile(m, n, k, shared_bytes(mma.SHARED_BYTES))
    return mma.mma_matmul(m, n, k, dtype, dtype, tile, gelu)


def make_hopper_kernel(layer: Layer) -> tirx.PrimFunc:
    """The same by `wgmma`: it runs on Hopper GPUs only."""
    m, n, k, dtype = layer.m, layer.n, layer.k, layer.dtype
    return wgmma.wgmma_matmul(m, n, k, dtype, dtype, after=gelu)


def bind_kernel(make: Callable[[Layer], tirx.PrimFunc]) -> Callable:
    """The implementation that runs `make(layer)`, with the bias and GELU inside."""

    def bound(x, w, bias):
        from chapters.kit.gpu.call import compile_kernel

        func = make(Layer(len(x), len(w), x.shape[1], str(x.dtype).removeprefix("torch.")))
        return gpu_linear_bench.bind_kernel(func, compile_kernel(func), x, w, bias)

    return bound


def by_triton(x, w, bias):
    """The kernel of triton_linear_gelu.py."""
    from chapters.ch08_gpu_targets.triton_linear_gelu import linear_gelu

    return keep_result(linear_gelu, x, w, bias)


def eager(x, w, bias, **how):
    """PyTorch, operator by operator: the library's product with the bias in its epilogue, then GELU.

    how: options for torch.compile, which then may choose a template that holds the GELU.
    """
    from torch.nn import functional

    def linear_gelu(x, w, bias):
        return functional.gelu(functional.linear(x, w, bias))

    return keep_result(linear_gelu, x, w, bias, **how)


IMPLEMENTATIONS = {
    "mma.sync": bind_kernel(make_kernel),
    "wgmma": bind_kernel(make_hopper_kernel),
    "Triton": by_triton,
    EAGER_GELU: eager,
    "torch.compile": functools.partial(eager, **TUNED),
}
