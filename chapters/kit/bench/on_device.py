"""Runs the kernel of one exercise on a device: right numbers first, then its time beside others'.

A chapter says in its on_device.py which exercises have a kernel (`OnDevice`). The numbers are compared with NumPy's in
float64, from an output that starts as not-a-number. Times are medians of rounds in which the contenders take turns in a
random order; a kernel that is shorter than 20 ms is repeated, so its operands may lie in the caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from tvm import tirx

from chapters.kit.bench.gpu_clock import interleaved
from chapters.kit.bench.spread import Spread
from chapters.kit.bench.vendor import vendor
from chapters.kit.devices.connect import DeviceError
from chapters.kit.devices.device import Prepared
from chapters.kit.draw.table import Table, si

TOLERANCE = (
    1e-4  # of the largest exact result; sums are in float32, whatever the dtype of the operands
)
YOURS = "yours"  # the contender whose numbers must be right
ROUNDED = 2e-3  # for a library that rounds its result to float16


class Problem(Protocol):
    """Something to compute: its operands, its exact result, and what it costs."""

    dtype: str

    def arrays(self, seed: int) -> list[np.ndarray]:
        """The operands, and last an output of not-a-number."""

    def exact(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The result in float64."""

    @property
    def operations(self) -> int: ...

    @property
    def bytes_moved(self) -> int: ...


@dataclass(frozen=True)
class Linear:
    """D = A @ B.T + C for A (m, k), B (n, k) of `dtype`, C (n,) and D (m, n) of float32."""

    m: int
    n: int
    k: int
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.m} × {self.n} × {self.k} {self.dtype}"

    def arrays(self, seed: int) -> list[np.ndarray]:
        """Biases are large beside rounding errors: one that is lost or added twice shows in every element."""
        drawn = np.random.default_rng(seed)
        shapes = (self.m, self.k), (self.n, self.k)
        a, b = (
            drawn.standard_normal(shape, dtype="float32").astype(self.dtype) for shape in shapes
        )
        c = (3 + 5 * drawn.random(self.n)).astype("float32")
        return [a, b, c, np.full((self.m, self.n), np.nan, "float32")]

    def exact(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        a, b, c = (array.astype("float64") for array in arrays[:3])
        return a @ b.T + c

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> int:
        item = np.dtype(self.dtype).itemsize
        return (self.m * self.k + self.n * self.k) * item + (self.n + self.m * self.n) * 4


@dataclass(frozen=True)
class ScaledSum:
    """D = A + B * B, element by element, all of shape (rows, columns)."""

    rows: int
    columns: int
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.rows} × {self.columns} {self.dtype}"

    def arrays(self, seed: int) -> list[np.ndarray]:
        drawn, shape = np.random.default_rng(seed), (self.rows, self.columns)
        a, b = (drawn.standard_normal(shape, dtype="float32").astype(self.dtype) for _ in "ab")
        return [a, b, np.full(shape, np.nan, self.dtype)]

    def exact(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        a, b = (array.astype("float64") for array in arrays[:2])
        return a + b * b

    @property
    def operations(self) -> int:
        return 2 * self.rows * self.columns

    @property
    def bytes_moved(self) -> int:
        return 3 * self.rows * self.columns * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class OnDevice:
    """An exercise whose kernel runs on a device.

    func(answer, problem, tile): the PrimFunc; `answer` has the names of the learner's file or of the reference's, and
    everything else is the reference's. small: (problem, tile) with hard sizes. large(tile, slow): the problem that is
    timed, smaller where a CPU stands in for the GPU. tile: the one that is timed if none is given. read_tile: a tile
    from numbers; ValueError says what it takes. only: the one kind of device that it can run on, and why.
    """

    func: Callable[[Any, Any, Any], tirx.PrimFunc]
    small: Sequence[tuple[Problem, Any]]
    large: Callable[[Any, bool], Problem]
    tile: Any = None
    read_tile: Callable[[Sequence[int]], Any] | None = None
    only: tuple[str, str] | None = None
    on_cpu: bool = True  # whether its threads may run one after the other, in tests


@dataclass
class Found:
    """What was found. wrong: why the answer is not right here, "" if it is. times: contender -> Spread."""

    wrong: str = ""
    right: list[str] = field(default_factory=list)
    error: float = 0.0
    problem: str = ""
    times: dict[str, Spread] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)
    table: str = ""


class WrongNumbers(Exception):
    """A kernel's result is not right; the message says where."""


def cannot(exercise: OnDevice, device) -> str:
    """Why the exercise's kernel cannot run on `device`; "" if it can."""
    if exercise.only and device.kind != exercise.only[0]:
        return exercise.only[1]
    if device.kind == "llvm" and not exercise.on_cpu:
        return "its threads share memory, and on a CPU they would run one after the other"
    return ""


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


def check(exercise: OnDevice, answer: Any, device) -> Found:
    """Run the answer's kernel on the small problems. DeviceErrors of the device pass; NotImplementedError too."""
    found = Found()
    for seed, (problem, tile) in enumerate(exercise.small):
        try:
            arrays = problem.arrays(seed)
            prepared = device.prepare(exercise.func(answer, problem, tile), arrays)
            found.error = max(found.error, compare(prepared, problem, arrays))
        except WrongNumbers as wrong:
            found.wrong = str(wrong)
            return found
        found.right.append(str(problem))
    return found


def measure(
    exercise: OnDevice,
    answers: dict[str, Any],
    device,
    *,
    rounds: int,
    tile: Any = None,
    seed: int | None = None,
) -> Found:
    """The times of `answers` (name -> the names of a file) and of a vendor's library on the large problem.

    A contender with wrong numbers is not timed; `without` says who is missing, and why. If it is YOURS, `wrong` says so
    and nothing is timed. tile: one of the learner's own.
    """
    problem = exercise.large(tile or exercise.tile, device.is_slow)
    arrays = problem.arrays(0)
    found = Found(problem=str(problem))
    contenders: dict[str, Prepared] = {}
    for name, answer in answers.items():
        try:
            func = exercise.func(answer, problem, tile or exercise.tile)
            prepared = device.prepare(func, arrays)
            compare(prepared, problem, arrays)
            contenders[name] = prepared
        except WrongNumbers as wrong:
            if name == YOURS:
                found.wrong = str(wrong)
                return found
            found.without.append(_untimed(name, wrong))
    name, prepared = vendor(device, problem, arrays)
    if prepared is None:
        found.without.append(f"no vendor library: {name}")
    else:
        try:
            compare(prepared, problem, arrays, TOLERANCE if problem.dtype == "float32" else ROUNDED)
            contenders[name] = prepared
        except WrongNumbers as wrong:
            found.without.append(_untimed(name, wrong))
    found.times = interleaved(contenders, _OwnClock(), rounds=rounds, seed=seed, warm=1)
    found.table = str(time_table(found.times, problem))
    return found


def _untimed(name: str, wrong: WrongNumbers) -> str:
    return f"{name}: not timed, because its numbers are wrong {wrong}"


class _OwnClock:
    """A Clock for kernels that each measure themselves, where they run."""

    def round(self, order: list[tuple[str, Prepared]]) -> dict[str, float]:
        return {name: prepared.seconds() for name, prepared in order}


def time_table(times: dict[str, Spread], problem: Problem) -> Table:
    """One row per contender: its median with the quartiles around it, and its speed."""
    rows = []
    for name, time in times.items():
        between = f"{si(time.low, 's')} to {si(time.high, 's')}"
        flops = si(problem.operations / time.median, "FLOP/s")
        moved = si(problem.bytes_moved / time.median, "B/s")
        rows.append((name, si(time.median, "s"), between, flops, moved))
    return Table(
        (str(problem), "median", "half of the rounds", "arithmetic", "bytes, each once"), rows
    )


def tile_of(exercise: OnDevice, numbers: str) -> Any:
    """The tile in a text like "64,64,16,4,4". Raises DeviceError, in one sentence."""
    if exercise.read_tile is None:
        raise DeviceError("The kernel of this exercise has no tile to choose; leave out --tile.")
    try:
        return exercise.read_tile([int(one) for one in numbers.split(",")])
    except ValueError as error:
        said = (
            str(error)
            if "tile" in str(error)
            else "a tile is whole numbers with commas between them"
        )
        raise DeviceError(f"--tile {numbers}: {said}.") from None
