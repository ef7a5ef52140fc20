"""A linear layer with bias and GELU on a GPU, for `bench 8`: the fused kernels, baselines, and the measurement.

x (m, k), w (n, k) and bias (n,) give gelu(x @ w.T + bias), rounded to the dtype of x. GELU is the exact one, with erf.
Every implementation is a function of (x, w, bias) that returns (call, result), as in gpu_linear_bench.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T

from chapters.kit.bench import gpu_linear_bench
from chapters.kit.bench.gpu_clock import TUNED, Call, keep_result, measure_case, shared_bytes
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

    return keep_result(lambda: linear_gelu(x, w, bias))


def eager(x, w, bias, **how):
    """PyTorch, operator by operator: the library's product with the bias in its epilogue, then GELU.

    how: options for torch.compile, which then may choose a template that holds the GELU.
    """
    import torch
    from torch.nn import functional

    def linear_gelu(x, w, bias):
        return functional.gelu(functional.linear(x, w, bias))

    run = torch.compile(linear_gelu, **how) if how else linear_gelu
    return keep_result(lambda: run(x, w, bias))


IMPLEMENTATIONS = {
    "mma.sync": bind_kernel(make_kernel),
    "wgmma": bind_kernel(make_hopper_kernel),
    "Triton": by_triton,
    EAGER_GELU: eager,
    "torch.compile": functools.partial(eager, **TUNED),
}


def measure(
    layer: Layer,
    implementations: Mapping[str, Callable],
    *,
    quick: bool,
    say: Callable[[str], None],
    device: str = "cuda",
) -> dict:
    """One case of the results file: the times of every implementation that is installed and right."""
    from torch.nn import functional

    tensors = gpu_linear_bench.draw_inputs(layer, device)

    def made(make: Callable) -> tuple[Call, float]:
        call, result = make(*tensors)
        return call, gpu_linear_bench.check_result(call, result, *tensors, functional.gelu)

    makers = {name: functools.partial(made, make) for name, make in implementations.items()}
    _, case = measure_case(makers, quick, say)
    moved = layer.bytes_moved(layer.dtype)
    return {**asdict(layer), "operations": layer.operations, "bytes": moved, **case}
