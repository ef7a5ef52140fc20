"""Counts the registers, spilled bytes and shared memory of the two kernels, with NVIDIA's compiler but without a GPU.

`python -m chapters.ch04_add_rms_norm.registers` writes `docs/results/ch04_registers.json`, which the lesson shows, and
so does `bench 4`.
"""

from __future__ import annotations

import sys

from chapters.ch04_add_rms_norm.gpu_norms import kernels
from chapters.kit.bench.gpu_tables import register_table
from chapters.kit.bench.kernel_counts import count_kernels, explain_missing
from chapters.kit.bench.results import measure_and_save

NAME = "ch04_registers"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
DECODE = (2, 1, 8192), "bfloat16"  # the number of rows is not compiled in


def count_registers(architectures: tuple[str, ...] = ARCHITECTURES) -> dict:
    """`count_kernels` of both kernels, for DECODE."""
    found = sorted(kernels(*DECODE).items())
    made = {name: lambda func=func: func for name, func in found}
    return count_kernels(lambda arch: made, architectures)


if __name__ == "__main__":
    command = f"python -m {__spec__.name}"
    sys.exit(measure_and_save(NAME, count_registers, register_table, command, explain_missing()))
