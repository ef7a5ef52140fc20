"""A GPU's upper bounds, measured on the same machine as the kernels: copying memory, and multiplying matrices.

Datasheets give rates that no program reaches. Percentages on the pages refer to these measured rates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from chapters.kit.bench.cases import select_medians
from chapters.kit.bench.gpu_clock import Run, compare_calls, make_copy

COPIED_BYTES = 1 << 31  # read and written together
MATRIX = 8192  # rows and columns


@dataclass(frozen=True)
class Ceilings:
    """copy_rate: bytes per second, read and written, of a large copy. matrix_rate: FLOP/s of a bfloat16 product."""

    copy_rate: float
    matrix_rate: float

    def floor(self, moved_bytes: float, operations: float) -> float:
        """The least seconds that a kernel can take: the larger of its two times at these rates."""
        return max(moved_bytes / self.copy_rate, operations / self.matrix_rate)

    @property
    def ridge(self) -> float:
        """Operations per byte at which both times are equal: a kernel with fewer waits for memory."""
        return self.matrix_rate / self.copy_rate


@dataclass(frozen=True)
class Point:
    """A kernel on a case: the least operations and bytes that it needs, and the seconds that it took.

    group: "ours", "best library" or "not fused"; a plot marks each differently. name: the kernel's, for the table.
    """

    group: str
    name: str
    case: str
    operations: float
    bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds

    def share(self, ceilings: Ceilings) -> float:
        """The kernel's share of the speed that the ceilings allow at this intensity, 0 to 1."""
        return ceilings.floor(self.bytes, self.operations) / self.seconds


def measure_plan(
    plan: Mapping[str, Mapping[str, Callable[[], dict]]], run: Run, seconds: float = math.inf
) -> dict[str, dict]:
    """{name of a results file: the ceilings, its cases, and the titles of those that were skipped}.

    plan: {name of a results file: {title of a case: the function that measures it}}. After `seconds` no case is begun;
    if the run is stopped, what was measured before is returned.
    """
    until = time.monotonic() + seconds
    ceilings = asdict(measure_ceilings(run))
    copy, products = ceilings["copy_rate"] / 1e12, ceilings["matrix_rate"] / 1e12
    run.say(f"copy {copy:.3g} TB/s, bfloat16 {products:.4g} TFLOP/s")
    found = {}
    for name, cases in plan.items():
        done, skipped = [], []
        for title, measure in cases.items():
            if time.monotonic() > until:
                skipped.append(title)
                run.say(f"{name}: {title}: not begun, the time is up")
                continue
            run.say(f"{name}: {title}")
            try:
                done.append(measure())
            except KeyboardInterrupt:  # what was measured so far is kept
                until = 0.0
                skipped.append(title)
                run.say("  stopped; what was measured before is kept")
                continue
            medians = select_medians(done[-1]["seconds"])
            run.say("  " + ", ".join(f"{n} {1e6 * t:.4g} µs" for n, t in medians.items()))
        if done:
            found[name] = {"ceilings": ceilings, "cases": done, "skipped": skipped}
    return found


def measure_ceilings(run: Run) -> Ceilings:
    """Measure both rates. The matrices are random: zeros need less power, so a GPU multiplies them faster."""
    import torch

    size = COPIED_BYTES // (64 if run.quick else 1)
    side = MATRIX // (16 if run.quick else 1)
    a, b = (torch.randn(side, side, device=run.device).bfloat16() for _ in "ab")
    product = torch.empty_like(a)
    calls = {
        "copy": make_copy(size, run.device),
        "matrix": lambda: torch.matmul(a, b, out=product),
    }
    times = compare_calls(calls, run.quick)
    return Ceilings(size / times["copy"].median, 2 * side**3 / times["matrix"].median)
