"""What NVIDIA's compiler makes of the two kernels: registers, spilled bytes, shared memory. No GPU is needed.

`python -m chapters.ch04_add_rms_norm.registers` counts them and writes `docs/results/ch04_registers.json`; `bench 4`
does so too. The lesson counts anew where the compiler is installed, and else shows that file.
"""

from __future__ import annotations

import sys

from chapters.ch04_add_rms_norm.gpu_norms import kernels
from chapters.kit.bench.kernel_counts import compiler, save_counts
from chapters.kit.bench.results import Shown, load, made_with
from chapters.kit.draw.table import Table
from chapters.kit.gpu.cuda_resources import missing, resources
from chapters.kit.gpu.launches import HostProgram
from chapters.kit.gpu.targets import cuda

NAME = "ch04_registers"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
DECODE = (2, 1, 8192), "bfloat16"  # the number of rows is not compiled in


def counted(architectures: tuple[str, ...] = ARCHITECTURES) -> dict:
    """{architecture: {kernel: {registers, spilled_bytes, shared_bytes}}}, and the compiler, for DECODE."""
    found: dict = {}
    for arch in architectures:
        for name, func in sorted(kernels(*DECODE).items()):
            program = HostProgram(func, cuda(arch))
            (kernel,) = program.kernels.values()
            used = resources(kernel.source, arch)
            found.setdefault(arch, {})[name] = {
                "registers": used.registers,
                "spilled_bytes": used.spill_store_bytes + used.spill_load_bytes,
                "shared_bytes": used.shared_bytes,
            }
    return {"compiler": compiler(), "kernels": found}


def table(measured: dict) -> Table:
    """A row for each architecture and kernel."""
    header = ("for", "kernel", "registers a thread", "bytes spilled", "shared bytes a block")
    rows = [
        (arch, name, *used.values())
        for arch, by_kernel in measured["kernels"].items()
        for name, used in by_kernel.items()
    ]
    return Table(header, rows)


def shown() -> Shown:
    """Counted now where the compiler is installed, else from the results file."""
    if not missing():
        now = counted()
        return Shown(table(now), f"{now['compiler']}, counted while this page was built")
    results = load(NAME)
    if results is None:
        return Shown(None, f"Not counted yet: {missing()}.")
    measured = results["measured"]
    return Shown(table(measured), f"{measured['compiler']}; {made_with(results)}")


def main() -> int:
    """Count, print, and write the results file; 1 where the compiler is missing."""
    return save_counts(NAME, counted, table, missing(), f"python -m {__spec__.name}")


if __name__ == "__main__":
    sys.exit(main())
