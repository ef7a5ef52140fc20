"""Times calls on an NVIDIA GPU by Triton's `do_bench`, so that all numbers are measured in the same way.

Before each call `do_bench` overwrites the second-level cache, and two CUDA events give the time of the call alone. The
calls that are compared take turns in short runs of it. A call that is shorter than its launch is measured by
`do_bench_cudagraph` too, as one of many in a CUDA graph: without the cost of its launch, and with warm caches.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from chapters.kit.measure.quantiles import Quantiles, measure_in_turns

ROUNDS, QUICK_ROUNDS = 10, 2
CASE_SECONDS, QUICK_SECONDS = 2.0, 0.1  # of timing within a case
COPY = "copy"  # a copy of as many bytes: no implementation, but what the others are compared with
# torch.compile's options: all its tuning except CUDA graphs
TUNED = {"mode": "max-autotune-no-cudagraphs", "dynamic": False}
Call = Callable[[], object]


@dataclass(frozen=True)
class Run:
    """How a GPU is measured. quick: for a short time only. say: gets what happens. device: of PyTorch's tensors."""

    quick: bool
    say: Callable[[str], None]
    device: str = "cuda"


class NoGpuError(Exception):
    """This machine has no GPU to measure; the message says why, and what runs here instead."""


class WrongNumbersError(Exception):
    """An implementation's results differ from float64's by more than the tolerance, so it is not timed."""


def explain_no_gpu() -> str:
    """Why a GPU cannot be measured here; "" if it can."""
    from chapters.kit.machine import cuda_state, nvidia_gpu

    if not nvidia_gpu():
        return "the NVIDIA driver's nvidia-smi finds no GPU, or is not there"
    for module, name in {"torch": "PyTorch", "triton": "Triton"}.items():
        if not importlib.util.find_spec(module):
            return f"{name}, which the measurement uses, is not installed"
    import torch  # before TVM: it brings the CUDA library that TVM looks for

    if not torch.cuda.is_available():
        return "PyTorch finds no NVIDIA GPU"
    state, sentence = cuda_state()
    return "" if state == "gpu" else sentence


def shared_bytes(otherwise: int) -> int:
    """How many bytes of shared memory a block may ask for on this machine's GPU; `otherwise` if it has none."""
    try:
        import torch
    except ImportError:
        return otherwise
    if not torch.cuda.is_available():
        return otherwise
    properties = torch.cuda.get_device_properties(0)
    return getattr(properties, "shared_memory_per_block_optin", otherwise)


def time_cold(call: Call, seconds: float) -> list[float]:
    """Timings of single calls, each from a cold cache; `seconds` are spent, the overwriting of the cache included."""
    from triton.testing import do_bench

    return [ms / 1e3 for ms in do_bench(call, warmup=1, rep=1e3 * seconds, return_mode="all")]


def time_in_graph(call: Call) -> list[float]:
    """Ten timings of one call of many in a CUDA graph. Raises the library's own error if it cannot be recorded."""
    from triton.testing import do_bench_cudagraph

    return [ms / 1e3 for ms in do_bench_cudagraph(call, return_mode="all")]


def compare_calls(calls: Mapping[str, Call], quick: bool) -> dict[str, Quantiles]:
    """The Quantiles of single calls that take turns; CASE_SECONDS, or QUICK_SECONDS, are spent in all."""
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if quick else (ROUNDS, CASE_SECONDS)
    each = seconds / rounds / max(len(calls), 1)
    clocks = {name: functools.partial(time_cold, call, each) for name, call in calls.items()}
    return measure_in_turns(clocks, rounds, seconds=seconds)


def measure_case(
    ways: Mapping[str, Callable], operands: tuple, check: Callable, run: Run, copy: Call | None
) -> tuple[dict[str, tuple[Call, Call]], dict]:
    """({name: (call, result)} of what was timed, a case's "seconds", "errors" and "missing").

    ways: name -> a function of `operands` that returns (call, result). check(call, result, *operands): returns the
    error against float64, or raises. copy: is timed as COPY, if there is one.
    """

    def made(make: Callable) -> tuple[tuple[Call, Call], float]:
        both = make(*operands)
        return both, check(*both, *operands)

    makers = {name: functools.partial(made, make) for name, make in ways.items()}
    found, errors, missing = make_all(makers, run.say)
    calls = {COPY: copy} if copy else {}
    calls |= {name: call for name, (call, _) in found.items()}
    seconds = {name: asdict(q) for name, q in compare_calls(calls, run.quick).items()}
    return found, {"seconds": seconds, "errors": errors, "missing": missing}


def make_all(
    makers: Mapping[str, Callable[[], tuple]], say: Callable[[str], None]
) -> tuple[dict, dict, dict[str, str]]:
    """Call `makers`, each of which returns two things; returns (the first ones, the second ones, who is missing, why).

    A maker that raises does not end the run: it is missing, and `say` is told why.
    """
    first, second, missing = {}, {}, {}
    for name, make in makers.items():
        try:
            first[name], second[name] = make()
        except Exception as problem:
            lines = str(problem).strip().splitlines() or [""]
            missing[name] = f"{type(problem).__name__}: {lines[0][:160]}"
            if isinstance(problem, ImportError) and problem.name:
                missing[name] = f"{problem.name} is not installed"
            say(f"  {name}: {missing[name]}")
    return first, second, missing


def make_copy(moved: int, device: str) -> Callable[[], object]:
    """A copy that reads and writes `moved` bytes together."""
    import torch

    source = torch.randint(-100, 100, (moved // 2,), dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def keep_result(function: Callable, *operands, **how) -> tuple[Call, Call]:
    """(call, result) for a function that returns its result in new tensors. how: torch.compile's options, if any."""
    if how:
        import torch

        function = torch.compile(function, **how)
    kept: list = []

    def call() -> None:
        kept[:] = [function(*operands)]

    return call, lambda: kept[0]
