"""What this machine and this installation are: the facts behind `doctor`, the page stamps and the results files."""

from __future__ import annotations

import ctypes.util
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from chapters.toolkit.course import ROOT


def pins() -> dict[str, str]:
    """The packages that pyproject.toml pins to one version, and that version."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(re.findall(r'"([A-Za-z0-9_.-]+)==([^"]+)"', text))


def installed(package: str) -> str:
    """The installed version of a package, "" if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def cpu_name() -> str:
    """The processor's name as the system gives it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if match:
            return match[1]
    if sys.platform == "darwin":
        brand = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            check=False,
        )
        if brand.stdout.strip():
            return brand.stdout.strip()
    return platform.processor() or platform.machine()


def llvm_host() -> dict:
    """LLVM's version, the CPU it takes this one for, the width of its vectors in bits, and a Target for it."""
    import tvm
    from tvm.target import codegen

    cpu = codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    return {
        "version": codegen.llvm_version_major(),
        "cpu": cpu,
        "bits": codegen.llvm_get_vector_width(target),
        "target": target,
    }


def cuda_state() -> tuple[str, str]:
    """("gpu" | "no gpu" | "not loaded" | "no library", one sentence) for TVM's CUDA runtime.

    A wheel whose CUDA runtime cannot load (libcudart or the driver is missing) says nothing by itself.
    """
    import tvm

    folder = Path(tvm.__file__).parent / "lib"
    if not any(folder.glob("*tvm_runtime_cuda*")):
        return (
            "no library",
            "this TVM wheel has no CUDA runtime (the macOS wheel has Metal instead)",
        )
    if "tvm_runtime_cuda" not in tvm.base._LOADED_LIBS:
        missing = [name for name in ("cudart", "cuda") if ctypes.util.find_library(name) is None]
        names = " and ".join(
            {"cudart": "libcudart", "cuda": "the NVIDIA driver"}[m] for m in missing
        )
        return "not loaded", "TVM's CUDA runtime could not be loaded" + (
            f": {names} not found" if names else ""
        )
    if tvm.cuda(0).exist:
        return "gpu", f"CUDA device 0 is {tvm.cuda(0).device_name}"
    return "no gpu", "TVM's CUDA runtime is loaded, and finds no GPU"


def metal_exists() -> bool:
    import tvm

    return bool(tvm.metal(0).exist)


def stamp() -> str:
    """One line that says what a page or a result was made with."""
    return (
        f"TVM {installed('apache-tvm')}, tvm-ffi {installed('apache-tvm-ffi')}, NumPy {installed('numpy')}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, {cpu_name()}"
    )
