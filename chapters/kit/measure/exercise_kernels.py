"""Runs the kernel of one exercise on a device: right numbers first, then its time beside the reference's and PyTorch's.

A chapter says in its device_kernels.py which exercises have a kernel (`DeviceKernel`). The numbers are compared with
NumPy's in float64, from an output that starts as not-a-number. Times are medians of rounds in which the kernels take
turns in a random order; a kernel that is shorter than 20 ms is repeated, so its operands may lie in the caches.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tvm import tirx

from chapters.kit.draw.table import Table, format_si
from chapters.kit.measure.devices import BATCH_MS, DeviceError, Prepared
from chapters.kit.measure.quantiles import Quantiles, measure_in_turns, time_repeated

# of the largest exact result; sums are in float32, whatever the dtype of the operands
TOLERANCE = 1e-4
ROUNDED = 2e-3  # for a library that rounds its result to float16
YOURS, REFERENCE = "yours", "the reference"


class Problem(Protocol):
    """Something to compute, and what it costs at least."""

    dtype: str
    operations: int
    least_bytes: int

    def arrays(self, seed: int) -> list[np.ndarray]:
        """The operands, and last an output of not-a-number."""

    def exact(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The result in float64."""

    def by_torch(self, *operands) -> object:
        """The result as PyTorch computes it from its tensors of `dtype`."""


@dataclass(frozen=True)
class DeviceKernel:
    """An exercise whose kernel runs on a device.

    func(answer, problem, tile): the PrimFunc; `answer` has the names of the learner's file or of the reference's, and
    everything else is the reference's. small: (problem, tile) with hard sizes. large: the problem that is timed with
    `tile`, on a GPU and where a CPU stands in for it. cannot: a kind of device -> why the kernel cannot run on it.
    """

    func: Callable[[Any, Any, Any], tirx.PrimFunc]
    small: Sequence[tuple[Problem, Any]]
    large: tuple[Problem, Problem]
    tile: Any = None
    cannot: Mapping[str, str] | None = None


class WrongNumbers(Exception):
    """A kernel's result is not right; the message says where."""


def check(exercise: DeviceKernel, answer: Any, device) -> list[str]:
    """What was right about the answer's kernel on the small problems. Raises WrongNumbers or DeviceError."""
    error = 0.0
    for seed, (problem, tile) in enumerate(exercise.small):
        arrays = problem.arrays(seed)
        prepared = device.prepare(exercise.func(answer, problem, tile), arrays)
        error = max(error, compare(prepared, problem, arrays))
    sizes = ", ".join(str(problem) for problem, _ in exercise.small)
    return [
        f"✓ right on {device.name} for {sizes}, and for the size below",
        f"  compared with NumPy in float64: off by {error:.1g} of the largest element, {TOLERANCE:g} is allowed",
    ]


def compare(
    prepared: Prepared, problem: Problem, arrays: Sequence[np.ndarray], tolerance: float = TOLERANCE
) -> float:
    """Run once; the largest error, as a share of the largest exact result. Raises WrongNumbers above `tolerance`."""
    prepared.call()
    found, exact = prepared.result().astype("float64"), problem.exact(arrays)
    off, most = np.abs(found - exact), float(np.abs(exact).max())
    bad = ~(off <= tolerance * most)
    if not bad.any():
        return float(off.max()) / most
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    value = "was not written" if np.isnan(found[at]) else f"is {found[at]:.6g}"
    raise WrongNumbers(
        f"for {problem}, element {list(at)} {value} and must be {exact[at]:.6g}; {int(bad.sum())} of {bad.size} "
        f"elements are off by more than {tolerance:g} of the largest"
    )


def measure(
    exercise: DeviceKernel,
    answers: Mapping[str, Any],
    device,
    *,
    rounds: int,
    seed: int | None = None,
) -> tuple[Table, list[str]]:
    """(the times of `answers` and of PyTorch on the large problem, who is missing and why).

    answers: YOURS or REFERENCE -> the names of a file. The reference and PyTorch are not timed if their numbers are
    wrong. Raises WrongNumbers if the learner's are.
    """
    problem = exercise.large[device.slow]
    arrays = problem.arrays(0)
    kernels = {
        name: device.prepare(exercise.func(answer, problem, exercise.tile), arrays)
        for name, answer in answers.items()
    }
    missing = []
    if reason := _explain_no_torch(device):
        missing.append(f"PyTorch: {reason}")
    else:
        kernels["PyTorch"] = _prepare_torch(device, problem, arrays)
    clocks = {}
    for name, prepared in kernels.items():
        rounded = name == "PyTorch" and problem.dtype != "float32"
        try:
            compare(prepared, problem, arrays, ROUNDED if rounded else TOLERANCE)
        except WrongNumbers as wrong:
            if name == YOURS:
                raise
            missing.append(f"{name}: not timed, because its numbers are wrong {wrong}")
        else:
            clocks[name] = lambda prepared=prepared: [prepared.seconds()]
    return time_table(measure_in_turns(clocks, rounds, seed=seed), problem), missing


def _explain_no_torch(device) -> str:
    """Why PyTorch cannot be timed on `device`; "" if it can."""
    if device.session:
        return "it is timed only on a GPU of this machine"
    if device.kind not in ("cuda", "metal"):
        return "it cannot use this device"
    if not importlib.util.find_spec("torch"):
        return "it is not installed"
    import torch

    there = torch.cuda if device.kind == "cuda" else torch.backends.mps
    return "" if there.is_available() else "it finds no GPU"


def _prepare_torch(device, problem: Problem, arrays: Sequence[np.ndarray]) -> Prepared:
    """The problem as PyTorch computes it on copies of `arrays`."""
    import torch

    library = torch.cuda if device.kind == "cuda" else torch.mps
    place = f"cuda:{device.raw.index}" if device.kind == "cuda" else "mps"
    try:
        kind = getattr(torch, problem.dtype)
        operands = [torch.from_numpy(array).to(place, kind) for array in arrays[:-1]]
    except Exception as error:
        raise DeviceError(f"PyTorch cannot use {place}: {str(error).splitlines()[0]}.") from None

    def repeat(times: int) -> None:
        for _ in range(times):
            problem.by_torch(*operands)
        library.synchronize()

    def result() -> np.ndarray:
        return problem.by_torch(*operands).float().cpu().numpy()

    return Prepared(lambda: repeat(1), result, lambda: time_repeated(repeat, BATCH_MS / 1e3))


def time_table(times: Mapping[str, Quantiles], problem: Problem) -> Table:
    """One row per kernel: its median with the quartiles around it, and its speed."""
    rows = []
    for name, time in times.items():
        between = f"{format_si(time.low, 's')} to {format_si(time.high, 's')}"
        flops = format_si(problem.operations / time.median, "FLOP/s")
        moved = format_si(problem.least_bytes / time.median, "B/s")
        rows.append((name, format_si(time.median, "s"), between, flops, moved))
    return Table(
        (str(problem), "median", "half of the rounds", "arithmetic", "bytes, each once"), rows
    )
