"""Shows what NVIDIA's compiler counts in kernels, and saves it in a results file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from tvm import tirx

from chapters.kit.bench.results import SourcedTable, save
from chapters.kit.draw.table import Table
from chapters.kit.gpu.cuda_resources import missing
from chapters.kit.gpu.kernel_report import measure_resources, resources_of
from chapters.kit.machine import versions

COMPILER = "nvidia-cuda-nvrtc"  # the wheel that holds it


def compiler() -> str:
    """The compiler and its version, such as "nvidia-cuda-nvrtc 13.5.1", to be shown with counts."""
    return f"{COMPILER} {versions(COMPILER).get(COMPILER, '')}"


def resource_table(
    kernels: Mapping[str, tirx.PrimFunc], architectures: tuple[str, ...]
) -> SourcedTable:
    """`resources_of` these kernels, counted now; if the compiler is missing, a sentence that says so."""
    if missing():
        return SourcedTable(None, f"Not counted on this machine: {missing()}.")
    counted = (
        (arch, name, *measure_resources(func, arch))
        for arch in architectures
        for name, func in kernels.items()
    )
    source = "Counted by NVRTC; other versions count a little differently."
    return SourcedTable(resources_of(counted), source)


def save_counts(
    name: str,
    count: Callable[[], dict],
    table: Callable[[dict], Table],
    lacking: str,
    command: str,
) -> int:
    """Count, print, and write the results file `name`; returns the exit status.

    lacking: what is missing for that, "" if nothing is; it is then printed, and the exit status is 1.
    """
    if lacking:
        print(f"{lacking}: pip install -e '.[gpu]'", file=sys.stderr)
        return 1
    now = count()
    print(table(now))
    path = save(name, now, command)
    print(f"written: {path.relative_to(path.parents[2])}")
    return 0
