"""A linear layer with bias and GELU on a GPU: the chapter's fused kernels and their peers, for `bench 8`."""

from __future__ import annotations

from dataclasses import replace

from tvm import tirx
from tvm.script import tirx as T

from chapters.kit.bench import gpu_gelu_bench, gpu_linear_bench
from chapters.kit.bench.gpu_clock import shared_bytes
from chapters.kit.bench.gpu_linear_bench import Layer
from chapters.kit.bench.gpu_norm_bench import returned
from chapters.kit.gpu import mma
from chapters.kit.gpu.linear_layer import linear_layer


def kernel(layer: Layer, tile: mma.MmaTile | None = None) -> tirx.PrimFunc:
    """gelu(A @ B.T + C) for A (m, k), B (n, k) and the result of the layer's dtype, C (n,) float32, by `mma.sync`.

    The sums start from the bias, and GELU is applied to them in registers. tile: by default the largest that fits.
    """
    tile = tile or mma.tile_for(layer.m, layer.n, layer.k, shared_bytes(mma.SHARED_BYTES))
    plain = linear_layer(layer.m, layer.n, layer.k, layer.dtype, layer.dtype)
    half, total = T.float32(0.5), plain.total
    gelu = total * (half + half * T.erf(total * T.float32(0.5**0.5)))
    fused = replace(plain, value=T.cast(gelu, layer.dtype))
    func = tirx.PrimFunc(
        [fused.x, fused.w, fused.start.source, fused.out], mma.mma_body(fused, tile)
    )
    return func.with_attrs({"global_symbol": "main", "tirx.noalias": True})


def ours(x, w, bias):
    """The chapter's `mma.sync` kernel with the bias and GELU inside."""
    from chapters.kit.gpu.call import compiled

    dtype = str(x.dtype).removeprefix("torch.")
    func = kernel(Layer(len(x), len(w), x.shape[1], dtype))
    return gpu_linear_bench.by_kernel(func, compiled(func), x, w, bias)


def by_triton(x, w, bias):
    """The kernel of triton_linear_gelu.py."""
    from chapters.ch08_gpu_targets.triton_linear_gelu import linear_gelu

    made = returned(lambda: linear_gelu(x, w, bias))
    return made.call, made.results


IMPLEMENTATIONS = {"mma.sync": ours, "Triton": by_triton, **gpu_gelu_bench.LIBRARIES}
