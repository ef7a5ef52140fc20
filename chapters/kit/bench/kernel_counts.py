"""What NVIDIA's compiler counts in kernels: for a results file, and as a table that is counted now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import tirx

from chapters.kit.bench.results import Note, Parts
from chapters.kit.gpu.cuda_resources import missing
from chapters.kit.gpu.kernel_report import measure_resources, resources_of
from chapters.kit.machine import versions

COMPILER = "nvidia-cuda-nvrtc"  # the wheel that holds it


def explain_missing() -> str:
    """Why nothing can be counted here, and what to install; "" if it can."""
    return f"{missing()}: pip install -e '.[gpu]'" if missing() else ""


def compiler() -> str:
    """The compiler and its version, such as "nvidia-cuda-nvrtc 13.5.1", to be shown with counts."""
    return f"{COMPILER} {versions(COMPILER).get(COMPILER, '')}"


def resource_table(kernels: Mapping[str, tirx.PrimFunc], architectures: tuple[str, ...]) -> Parts:
    """`resources_of` these kernels, counted now; if the compiler is missing, a sentence that says so."""
    if missing():
        return Parts([Note(f"Not counted on this machine: {missing()}.")])
    counted = (
        (arch, name, *measure_resources(func, arch))
        for arch in architectures
        for name, func in kernels.items()
    )
    source = Note("Counted by NVRTC; other versions count a little differently.")
    return Parts([resources_of(counted), source])


def count_kernels(
    kernels: Callable[[str], Mapping[str, Callable[[], tirx.PrimFunc]]],
    architectures: Sequence[str],
) -> dict:
    """{"kernels": {architecture: {kernel: its counts}}}, and the compiler, of `kernels(architecture)`."""
    found: dict = {arch: {} for arch in architectures}
    for arch in architectures:
        for name, make in kernels(arch).items():
            used, threads = measure_resources(make(), arch)
            found[arch][name] = {
                "threads": threads,
                "registers": used.registers,
                "stored": used.spill_store_bytes,
                "loaded": used.spill_load_bytes,
                "shared": used.shared_bytes,
            }
    return {"compiler": compiler(), "kernels": found}
