"""A linear layer with bias and GELU on a GPU: the chapter's fused kernels and baselines, for `bench 8`."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T

from chapters.kit.bench import gpu_gelu_bench, gpu_linear_bench
from chapters.kit.bench.gpu_clock import returned, shared_bytes
from chapters.kit.bench.gpu_linear_bench import Layer
from chapters.kit.gpu import mma, wgmma


def gelu(total: Expr) -> Expr:
    """The exact GELU, with erf, of a float32 expression."""
    half = T.float32(0.5)
    return total * (half + half * T.erf(total * T.float32(0.5**0.5)))


def kernel(layer: Layer, tile: mma.MmaTile | None = None) -> tirx.PrimFunc:
    """gelu(A @ B.T + C) for A (m, k), B (n, k) and the result of the layer's dtype, C (n,) float32, by `mma.sync`.

    The sums start from the bias, and GELU is applied to them in registers. tile: by default the largest that fits.
    """
    m, n, k, dtype = layer.m, layer.n, layer.k, layer.dtype
    tile = tile or mma.tile_for(m, n, k, shared_bytes(mma.SHARED_BYTES))
    return mma.mma_matmul(m, n, k, dtype, dtype, tile, gelu)


def hopper_kernel(layer: Layer) -> tirx.PrimFunc:
    """The same by `wgmma`: it runs on Hopper GPUs only."""
    m, n, k, dtype = layer.m, layer.n, layer.k, layer.dtype
    return wgmma.wgmma_matmul(m, n, k, dtype, dtype, after=gelu)


def by_kernel(make: Callable[[Layer], tirx.PrimFunc]) -> Callable:
    """The implementation that runs `make(layer)`, with the bias and GELU inside."""

    def bound(x, w, bias):
        from chapters.kit.gpu.call import compiled

        func = make(Layer(len(x), len(w), x.shape[1], str(x.dtype).removeprefix("torch.")))
        return gpu_linear_bench.by_kernel(func, compiled(func), x, w, bias)

    return bound


def by_triton(x, w, bias):
    """The kernel of triton_linear_gelu.py."""
    from chapters.ch08_gpu_targets.triton_linear_gelu import linear_gelu

    return returned(lambda: linear_gelu(x, w, bias))


IMPLEMENTATIONS = {
    "mma.sync": by_kernel(kernel),
    "wgmma": by_kernel(hopper_kernel),
    "Triton": by_triton,
    **gpu_gelu_bench.LIBRARIES,
}
