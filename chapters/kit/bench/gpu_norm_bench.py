"""Add and RMSNorm on a GPU: our kernels and libraries that do the same, checked before they are timed.

Every implementation is a function of (x1, x2, weight) on PyTorch's tensors that returns two functions: the
call, and (norm, total) after the first call. One that works in place goes on with its own results, once it is timed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict

from chapters.kit.bench import gpu_clock
from chapters.kit.bench.gpu_clock import TUNED, Call, Run, WrongNumbersError, keep_result
from chapters.kit.gpu.limits import ITEM_BYTES
from chapters.kit.measure.quantiles import Quantiles

SHAPES = ((1, 1, 4096), (64, 1, 4096), (1, 512, 4096), (1, 4096, 4096), (8192, 8192))
EPSILON = 1e-5
IN_A_GRAPH = 64  # rows, at most, for which a call is also timed in a graph: it takes less time than its launch
# largest error allowed in a row, as a share of its largest value: two roundings of the dtype
TOLERANCE = {"float16": 1.5e-3, "bfloat16": 1.2e-2, "float32": 2e-6}
Norm = tuple[Call, Callable[[], tuple]]


def bytes_moved(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of two reads and two writes of the tensor, and of the weight."""
    return (4 * math.prod(shape) + shape[-1]) * ITEM_BYTES[dtype]


def operations(shape: tuple[int, ...]) -> int:
    """Per element: an add, a multiply-add for the square, and two multiplications."""
    return 5 * math.prod(shape)


def draw_inputs(shape: tuple[int, ...], dtype: str, device: str = "cuda") -> tuple:
    """Fresh random x1, x2 and weight."""
    import torch

    kind = getattr(torch, dtype)
    x1, x2 = (torch.randn(shape, device=device).to(kind) for _ in "12")
    return x1, x2, (1 + torch.randn(shape[-1], device=device) / 4).to(kind)


def compute_error(norm, total, x1, x2, weight) -> float:
    """The norm's largest error against float64, as a share of the largest value of its row.

    Raises WrongNumbersError if the sum is not x1 + x2 rounded, or an element is not a number.
    """
    if not bool((total == x1 + x2).all()):
        raise WrongNumbersError("the sum is not x1 + x2")
    wide = total.double()
    exact = wide * (wide.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.double()
    off = (norm.double() - exact).abs().amax(-1) / exact.abs().amax(-1)
    worst = float(off.max())
    if math.isnan(worst):
        raise WrongNumbersError("elements of the norm are not a number, or were not written")
    return worst


def check_norm(call: Call, results: Callable[[], tuple], x1, x2, weight) -> float:
    """The error of the first call; raises WrongNumbersError if it is above the tolerance."""
    call()
    dtype = str(x1.dtype).removeprefix("torch.")
    worst = compute_error(*results(), x1, x2, weight)
    if worst > TOLERANCE[dtype]:
        raise WrongNumbersError(f"the norm is off by {worst:.1e} of its row's largest value")
    return worst


def measure(
    shape: tuple[int, ...], dtype: str, implementations: Mapping[str, Callable], run: Run
) -> dict:
    """One case of the results file: the times of every implementation that is installed and right."""
    operands = draw_inputs(shape, dtype, run.device)
    copy = make_norm_copy(*operands[:2])
    found, case = gpu_clock.measure_case(implementations, operands, check_norm, run, copy)
    in_graph: dict[str, Quantiles] = {}
    if math.prod(shape[:-1]) <= IN_A_GRAPH:
        calls = {gpu_clock.COPY: copy, **{name: call for name, (call, _) in found.items()}}
        graphs = {
            name: lambda call=call: (Quantiles.of(gpu_clock.time_in_graph(call)), 0)
            for name, call in calls.items()
        }
        in_graph, _, failed = gpu_clock.make_all(
            graphs, lambda text: run.say(f"{text} (in a graph)")
        )
        case["missing"] |= {f"{name} in a graph": reason for name, reason in failed.items()}
    return {
        "shape": list(shape),
        "dtype": dtype,
        "bytes": bytes_moved(shape, dtype),
        "operations": operations(shape),
        **case,
        "graph_seconds": {name: asdict(quantiles) for name, quantiles in in_graph.items()},
    }


def make_norm_copy(x1, x2) -> Call:
    """A copy of two tensors: it moves as many bytes as the fused kernel, except for the weight."""
    import torch

    source = torch.stack([x1, x2])
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


# --- implementations ------------------------------------------------------------------------------


def bind_kernel(kernel: Callable[[tuple[int, ...], str], object]) -> Callable:
    """The implementation that runs `kernel(shape, dtype)`, a PrimFunc of x1, x2, weight, norm and total."""

    def make(x1, x2, weight) -> Norm:
        import torch

        from chapters.kit.gpu.call import compile_kernel

        dtype = str(x1.dtype).removeprefix("torch.")
        # poisoned: an element that is never written is not a number
        norm, total = (torch.full_like(x1, float("nan")) for _ in "nt")
        call = compile_kernel(kernel(tuple(x1.shape), dtype))([x1, x2, weight, norm, total])
        return call, lambda: (norm, total)

    return make


def eager(x1, x2, weight, **how) -> Norm:
    """PyTorch, operator by operator; with options for torch.compile through that."""
    import torch

    def add_norm(x1, x2, weight):
        total = x1 + x2
        return torch.nn.functional.rms_norm(total, weight.shape, weight, EPSILON), total

    return keep_result(add_norm, x1, x2, weight, **how)


def by_flashinfer(x1, x2, weight) -> Norm:
    """FlashInfer's kernel. It works in place: the first tensor becomes the norm, and the second the sum."""
    from flashinfer.norm import fused_add_rmsnorm

    norm, total = (x.reshape(-1, x.shape[-1]).clone() for x in (x1, x2))
    return (
        lambda: fused_add_rmsnorm(norm, total, weight, EPSILON),
        lambda: (norm.reshape(x1.shape), total.reshape(x1.shape)),
    )


def by_quack(x1, x2, weight) -> Norm:
    """quack's kernels, written in CuTe's Python."""
    from quack.rmsnorm import rmsnorm_fwd

    rows, other = (x.reshape(-1, x.shape[-1]) for x in (x1, x2))

    def both():
        norm, total, *_ = rmsnorm_fwd(rows, weight, residual=other, eps=EPSILON)
        return norm.reshape(x1.shape), total.reshape(x1.shape)

    return keep_result(both)


LIBRARIES = {"PyTorch": eager, "torch.compile": functools.partial(eager, **TUNED)}
LIBRARIES |= {"FlashInfer": by_flashinfer, "quack": by_quack}
