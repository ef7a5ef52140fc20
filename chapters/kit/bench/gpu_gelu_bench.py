"""A linear layer with bias and GELU on a GPU: one kernel, or a product and what follows it, checked before it is timed.

x (m, k), w (n, k) and bias (n,) give gelu(x @ w.T + bias), rounded to the dtype of x. GELU is the exact one, with erf.
Every implementation is a function of (x, w, bias) that returns (call, result), as in gpu_linear_bench.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict

from chapters.kit.bench import gpu_linear_bench as linear
from chapters.kit.bench.gpu_clock import Call, measure_case, returned
from chapters.kit.bench.gpu_linear_bench import Layer

EAGER = "PyTorch's linear, then gelu"


def error(result, x, w, bias) -> float:
    """The relative error of `result`, as gpu_linear_bench measures and refuses it."""
    from torch.nn import functional

    return linear.error(result, x, w, bias, functional.gelu)


def eager(x, w, bias):
    """PyTorch, operator by operator: the library's product with the bias in its epilogue, then GELU."""
    from torch.nn import functional

    return returned(lambda: functional.gelu(functional.linear(x, w, bias)))


def compiled_by_torch(x, w, bias):
    """PyTorch's own compiler, with all its tuning except CUDA graphs: it may choose a template that holds the GELU."""
    import torch
    from torch.nn import functional

    @torch.compile(mode="max-autotune-no-cudagraphs", dynamic=False)
    def both(x, w, bias):
        return functional.gelu(functional.linear(x, w, bias))

    return returned(lambda: both(x, w, bias))


LIBRARIES = {EAGER: eager, "torch.compile": compiled_by_torch}


def measure(
    layer: Layer,
    implementations: Mapping[str, Callable],
    *,
    quick: bool,
    say: Callable[[str], None],
    device: str = "cuda",
) -> dict:
    """One case of the results file: the times of every implementation that is installed and right."""
    tensors = linear.draw(layer, device)

    def made(make: Callable) -> tuple[Call, float]:
        call, result = make(*tensors)
        return call, linear.checked(call, result, *tensors, error)

    makers = {name: functools.partial(made, make) for name, make in implementations.items()}
    _, case = measure_case(makers, quick, say)
    moved = layer.bytes_moved(layer.dtype)
    return {**asdict(layer), "operations": layer.operations, "bytes": moved, **case}
