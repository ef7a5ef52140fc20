"""What NVIDIA's compiler makes of the two kernels: registers, spilled bytes, shared memory. No GPU is needed.

`python -m chapters.ch04_add_rms_norm.registers` counts them and writes `docs/results/ch04_registers.json`; `bench 4`
does so too. The lesson counts anew where the compiler is installed, and else shows that file.
"""

from __future__ import annotations

import sys

from tvm import tirx
from tvm.target import Target

from chapters.toolkit.bench.results import Shown, load, made_with
from chapters.toolkit.earlier import earlier
from chapters.toolkit.gpu.cuda_resources import missing, resources
from chapters.toolkit.gpu.kernel_report import COMPILER, save_counts
from chapters.toolkit.gpu.launches import HostProgram
from chapters.toolkit.ir.row_index import row_dimensions
from chapters.toolkit.machine import installed
from chapters.toolkit.table import Table

NAME = "ch04_registers"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")
ROW = 8192, "bfloat16"
EPSILON = 1e-5


def kernels(hidden_size: int, dtype: str) -> dict[str, tirx.PrimFunc]:
    """Both kernels for rows of `hidden_size`, with the thread counts the pass would choose."""
    chapter = earlier(4)
    shape = [tirx.Var("n", "int64"), tirx.IntImm("int64", 1), tirx.IntImm("int64", hidden_size)]
    facts = row_dimensions(shape), hidden_size, dtype, EPSILON
    return {
        "row_kernel": chapter.row_kernel(*facts, chapter.fit_threads(hidden_size, 1024)),
        "wide_kernel": chapter.wide_kernel(*facts, chapter.plan_threads(hidden_size, dtype, 1024)),
    }


def counted(architectures: tuple[str, ...] = ARCHITECTURES) -> dict:
    """{architecture: {kernel: {registers, spilled_bytes, shared_bytes}}}, and the compiler, for rows of ROW."""
    found: dict = {}
    for arch in architectures:
        for name, func in kernels(*ROW).items():
            program = HostProgram(func, Target({"kind": "cuda", "arch": arch}))
            (kernel,) = program.kernels.values()
            used = resources(kernel.source, arch)
            found.setdefault(arch, {})[name] = {
                "registers": used.registers,
                "spilled_bytes": used.spill_store_bytes + used.spill_load_bytes,
                "shared_bytes": used.shared_bytes,
            }
    return {"compiler": f"{COMPILER} {installed(COMPILER)}", "kernels": found}


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
