"""Counts the registers, spilled bytes and shared memory of the two kernels, with NVIDIA's compiler but without a GPU.

`python -m chapters.ch04_add_rms_norm.registers` writes `docs/results/ch04_registers.json`, and so does `bench 4`. The
lesson counts again if the compiler is installed; otherwise it shows that file.
"""

from __future__ import annotations

import sys

from chapters.ch04_add_rms_norm.gpu_norms import kernels
from chapters.kit.bench.kernel_counts import compiler, save_counts
from chapters.kit.bench.results import SourcedTable, describe_origin, load
from chapters.kit.draw.table import Table
from chapters.kit.gpu.cuda_resources import missing
from chapters.kit.gpu.kernel_report import measure_resources

NAME = "ch04_registers"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
DECODE = (2, 1, 8192), "bfloat16"  # the number of rows is not compiled in


def count_registers(architectures: tuple[str, ...] = ARCHITECTURES) -> dict:
    """{architecture: {kernel: {registers, spilled_bytes, shared_bytes}}}, and the compiler, for DECODE."""
    found: dict = {}
    for arch in architectures:
        for name, func in sorted(kernels(*DECODE).items()):
            used, _ = measure_resources(func, arch)
            found.setdefault(arch, {})[name] = {
                "registers": used.registers,
                "spilled_bytes": used.spill_store_bytes + used.spill_load_bytes,
                "shared_bytes": used.shared_bytes,
            }
    return {"compiler": compiler(), "kernels": found}


def table(measured: dict) -> Table:
    """One row per architecture and kernel."""
    header = ("for", "kernel", "registers per thread", "bytes spilled", "shared bytes per block")
    rows = [
        (arch, name, *used.values())
        for arch, by_kernel in measured["kernels"].items()
        for name, used in by_kernel.items()
    ]
    return Table(header, rows)


def show_registers() -> SourcedTable:
    """The table, counted now if the compiler is installed, else from the results file."""
    if not missing():
        now = count_registers()
        return SourcedTable(table(now), f"{now['compiler']}, counted while this page was built")
    results = load(NAME)
    if results is None:
        return SourcedTable(None, f"Not counted yet: {missing()}.")
    measured = results["measured"]
    return SourcedTable(table(measured), f"{measured['compiler']}; {describe_origin(results)}")


def main() -> int:
    """Count, print, and write the results file; exit status 1 if the compiler is missing."""
    return save_counts(NAME, count_registers, table, missing(), f"python -m {__spec__.name}")


if __name__ == "__main__":
    sys.exit(main())
