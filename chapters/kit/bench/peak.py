"""Measure how many float32 operations per second one core of this CPU can do: `python -m chapters.kit.bench.peak`.

It writes docs/results/cpu_peak.json. No kernel measured on this machine can be faster, so a test compares every other
results file with it.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from chapters.kit.bench.cpu_bounds import MULTIPLY_ADDS, multiply_add
from chapters.kit.bench.operands import in_numpy_memory
from chapters.kit.bench.results import measure_and_save
from chapters.kit.machine import llvm_host

NAME = "cpu_peak"
COMMAND = "python -m chapters.kit.bench.peak"
CALLS = 3000  # of about half a millisecond: the fastest had the core to itself


def measure_peak(calls: int = CALLS) -> dict[str, float]:
    """Operations per second, of the fastest call: a multiply-add counts as two."""
    kernel, *shapes = multiply_add(1, llvm_host()["target"])
    factors, sums = (in_numpy_memory(np.full(shape, 0.5, "float32")) for shape in shapes)
    fastest = float("inf")
    for _ in range(calls):
        start = time.perf_counter()
        kernel(factors, sums)
        fastest = min(fastest, time.perf_counter() - start)
    return {"float32_operations_per_second": 2 * MULTIPLY_ADDS / fastest}


if __name__ == "__main__":
    sys.exit(measure_and_save(NAME, measure_peak, str, COMMAND))
