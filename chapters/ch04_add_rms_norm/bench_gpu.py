"""Measures the fused kernels on an NVIDIA GPU, against libraries that are installed, as a share of the copy rate.

One protocol for all: on one stream, the cache is overwritten, then an event, the call, an event; medians of many rounds
in random order; one synchronisation at the end of a round. What is wrong is not measured.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

import numpy as np

from chapters.toolkit.machine import cuda_state

SHAPES = ((1, 1, 4096), (64, 1, 4096), (1, 4096, 4096), (1, 4096, 8192), (1, 32768, 8192))
DTYPE = "bfloat16"
FLUSH_BYTES = 1 << 28  # more than any cache


def missing() -> str:
    """Why nothing can be measured here, "" if it can."""
    state, sentence = cuda_state()
    if state != "gpu":
        return sentence
    try:
        import torch
    except ImportError:
        return "PyTorch, whose events and streams the measurement uses, is not installed"
    return "" if torch.cuda.is_available() else "PyTorch finds no GPU"


def run_gpu(quick: bool, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """{shape: {implementation: seconds}}; "copy" moves as many bytes as the fused kernel must."""
    import torch

    found = {}
    for shape in SHAPES[1:2] if quick else SHAPES:
        torch.manual_seed(int.from_bytes(np.random.bytes(4), "little"))
        x1, x2 = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        weight = torch.randn(shape[-1], device="cuda", dtype=torch.bfloat16)
        calls = {"copy": _copy(x1, x2)}
        for name, make in IMPLEMENTATIONS.items():
            try:
                calls[name] = _checked(make(x1, x2, weight), x1, x2, weight)
            except ImportError as error:
                say(f"{name}: {error.name} is not installed")
            except Exception as error:  # a peer that does not work here must not end the run
                say(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
        found[str(shape)] = interleaved(calls, 5 if quick else 100)
        told = ", ".join(f"{name} {1e6 * s:.4g} µs" for name, s in found[str(shape)].items())
        say(f"{DTYPE} {shape}: {told}")
    return found


def interleaved(calls: dict[str, Callable], rounds: int) -> dict[str, float]:
    """Median seconds a call, each call after the cache was overwritten, in a new order every round."""
    import torch

    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(rounds + 3):
        events = {}
        for name in random.sample(list(calls), len(calls)):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.fill_(round_number % 100)
            start.record()
            calls[name]()
            end.record()
            events[name] = start, end
        torch.cuda.synchronize()
        if round_number >= 3:  # the first rounds compile and warm up
            for name, (start, end) in events.items():
                taken[name].append(start.elapsed_time(end) / 1e3)
    return {name: statistics.median(times) for name, times in taken.items()}


def reference(x1, x2, weight):
    """(norm in float32, total): the sum is rounded before it is squared."""
    from chapters.ch04_add_rms_norm.bench import EPSILON

    total = x1 + x2
    wide = total.float()
    mean = wide.pow(2).mean(-1, keepdim=True)
    return wide * (mean + EPSILON).rsqrt() * weight.float(), total


def _checked(call: Callable, x1, x2, weight) -> Callable:
    """`call`, after its results were compared with the reference; ValueError where they are wrong."""
    norm, total = call()
    exact, rounded = reference(x1, x2, weight)
    error = ((norm.float() - exact).abs().max() / exact.abs().max()).item()
    if not error < 1.2e-2 or not (total == rounded).all().item():
        raise ValueError(f"wrong numbers on the GPU: the norm's relative error is {error:.1e}")
    return call


def _copy(x1, x2) -> Callable:
    import torch

    given, taken = torch.stack([x1, x2]), torch.empty_like(torch.stack([x1, x2]))
    return lambda: taken.copy_(given)


# --- implementations: each is given tensors and returns a call without arguments -------------------------


def compiled_kernel(func, target=None):
    """`func` compiled for the GPU at hand: a function of x1, x2, weight, norm, total as DLPack tensors."""
    import tvm

    target = target or tvm.target.Target.from_device(tvm.cuda(0))
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.compile(mod, target=target)["main"]


def kernels_for(shape: tuple[int, ...], limit: int = 1024) -> dict:
    """Ours, wide and simple, and the launch that upstream's kernel has: 2-byte loads, 1024 threads a row."""
    from tvm import tirx

    from chapters.ch04_add_rms_norm.bench import EPSILON
    from chapters.toolkit.earlier import earlier
    from chapters.toolkit.row_index import row_dimensions

    chapter = earlier(4)
    facts = row_dimensions([tirx.IntImm("int64", n) for n in shape]), shape[-1], DTYPE, EPSILON
    return {
        "wide_kernel": chapter.wide_kernel(*facts, chapter.plan_threads(shape[-1], DTYPE, limit)),
        "row_kernel": chapter.row_kernel(*facts, chapter.fit_threads(shape[-1], limit)),
    }


def _ours(name: str) -> Callable:
    def make(x1, x2, weight):
        import torch
        import tvm_ffi

        main = compiled_kernel(kernels_for(tuple(x1.shape))[name])
        norm, total = torch.empty_like(x1), torch.empty_like(x1)
        given = [tvm_ffi.from_dlpack(t) for t in (x1, x2, weight, norm, total)]

        def call():
            with tvm_ffi.use_torch_stream():
                main(*given)
            return norm, total

        return call

    return make


def _eager(x1, x2, weight):
    import torch

    from chapters.ch04_add_rms_norm.bench import EPSILON

    def call():
        total = x1 + x2
        return torch.nn.functional.rms_norm(total, (x1.shape[-1],), weight, EPSILON), total

    return call


def _compiled(x1, x2, weight):
    import torch

    from chapters.ch04_add_rms_norm.bench import EPSILON

    @torch.compile(mode="max-autotune-no-cudagraphs")
    def both(x1, x2, weight):
        total = x1 + x2
        return torch.nn.functional.rms_norm(total, (x1.shape[-1],), weight, EPSILON), total

    return lambda: both(x1, x2, weight)


def _flashinfer(x1, x2, weight):
    from flashinfer.norm import fused_add_rmsnorm

    from chapters.ch04_add_rms_norm.bench import EPSILON

    rows = x1.reshape(-1, x1.shape[-1])
    norm, total = rows.clone(), x2.reshape(rows.shape).clone()

    def call():  # works in place: the numbers grow, the traffic stays
        fused_add_rmsnorm(norm, total, weight, EPSILON)
        return norm.reshape(x1.shape), total.reshape(x1.shape)

    return call


def _quack(x1, x2, weight):
    from quack.rmsnorm import rmsnorm_fwd

    from chapters.ch04_add_rms_norm.bench import EPSILON

    rows, other = x1.reshape(-1, x1.shape[-1]), x2.reshape(-1, x1.shape[-1])

    def call():
        norm, total, *_ = rmsnorm_fwd(rows, weight, residual=other, eps=EPSILON)
        return norm.reshape(x1.shape), total.reshape(x1.shape)

    return call


def _triton(x1, x2, weight):
    from chapters.ch04_add_rms_norm.bench import EPSILON
    from chapters.ch04_add_rms_norm.triton_add_norm import add_norm

    return lambda: add_norm(x1, x2, weight, EPSILON)


IMPLEMENTATIONS = {
    "wide_kernel": _ours("wide_kernel"),
    "row_kernel": _ours("row_kernel"),
    "PyTorch": _eager,
    "torch.compile": _compiled,
    "Triton": _triton,
    "FlashInfer": _flashinfer,
    "quack": _quack,
}
