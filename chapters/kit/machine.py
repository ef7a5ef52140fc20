"""Facts about this machine and this installation, for `doctor` and the results files."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

# the libraries that TVM's CUDA runtime is linked against
CUDA_RUNTIME = "cudart64_13.dll" if sys.platform == "win32" else "libcudart.so.13"
DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver
# a target for code that runs once: LLVM would take longer to optimize it than it takes to run
QUICK_LLVM = {"kind": "llvm", "opt-level": 0}


class DeviceError(ValueError):
    """A device cannot be used. The message says what is wrong and what to do."""


def versions(*packages: str) -> dict[str, str]:
    """The versions of those of `packages` that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def cpu_name() -> str:
    """The processor's name as the system reports it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if match:
            return match[1]
    if sys.platform == "darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        brand = subprocess.run(asked, capture_output=True, text=True, check=False)
        if brand.stdout.strip():
            return brand.stdout.strip()
    return platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """What tells processors apart that run different code: architecture, name and, on Linux, instruction sets."""
    about = [platform.machine(), cpu_name()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as cpuinfo:
        for line in cpuinfo:
            if not line.strip():  # the end of the first processor
                break
            if re.match("flags|Features|CPU", line):
                about.append(line)
    return about


def processors() -> int:
    """How many processors this process may run on; each hyper-thread counts."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_cores() -> int:
    """How many cores this process may run on; two hyper-threads of a core count once."""
    import psutil

    return min(psutil.cpu_count(logical=False) or processors(), processors())


def llvm_host() -> dict:
    """{"version": LLVM's major version, "cpu": the processor as LLVM names it, "target": a Target for it}."""
    import tvm
    from tvm.target import codegen

    cpu = codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    return {"version": codegen.llvm_version_major(), "cpu": cpu, "target": target}


def baseline_python() -> str:
    """The interpreter that has the libraries we compare with: what FUSION_PEER_PYTHON names, else this one."""
    return os.environ.get("FUSION_PEER_PYTHON", sys.executable)


def _load_library(library: str) -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        return ctypes.CDLL(library)
    return None


def load_torch_first() -> None:
    """Import PyTorch if it is installed and there is an NVIDIA driver: it brings the CUDA runtime that TVM looks for.

    Call it before the first import of TVM.
    """
    if _load_library(DRIVER) and importlib.util.find_spec("torch"):
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")


def driver_problem(load: Callable[[str], ctypes.CDLL | None] = _load_library) -> str:
    """One sentence if the NVIDIA driver is older than the CUDA runtime that TVM uses; "" if that is not the trouble."""
    runtime, number = load(CUDA_RUNTIME), ctypes.c_int()
    if runtime is None or load(DRIVER) is None:
        return ""
    if runtime.cudaGetDeviceCount(ctypes.byref(number)) != INSUFFICIENT_DRIVER:
        return ""

    def version(which: str) -> str:  # "12.2" for the number 12020, which is how CUDA counts
        runtime[f"cuda{which}GetVersion"](ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    needs = version("Runtime")
    return (
        f"The NVIDIA driver here is too old: it supports CUDA {version('Driver')}, and TVM's CUDA runtime is {needs}. "
        f"Install a driver for CUDA {needs.partition('.')[0]} (nvidia-smi shows the version in its first line), and "
        "restart"
    )


def cuda_state() -> tuple[str, str]:
    """("gpu" | "no gpu" | "not loaded" | "no library", one sentence) for TVM's CUDA runtime.

    When the CUDA runtime cannot be loaded (libcudart or the driver is missing), TVM itself gives no message.
    """
    import tvm

    folder = Path(tvm.__file__).parent / "lib"
    if not any(folder.glob("*tvm_runtime_cuda*")):
        absent = "this TVM wheel has no CUDA runtime (the macOS wheel has Metal instead)"
        return "no library", absent
    if "tvm_runtime_cuda" not in tvm.base._LOADED_LIBS:
        libraries = {CUDA_RUNTIME: CUDA_RUNTIME, DRIVER: "the NVIDIA driver"}
        missing = [what for name, what in libraries.items() if not _load_library(name)]
        reason = f": {' and '.join(missing)} not found" if missing else ""
        return "not loaded", f"TVM's CUDA runtime could not be loaded{reason}"
    if tvm.cuda(0).exist:
        return "gpu", f"CUDA device 0 is {tvm.cuda(0).device_name}"
    return "no gpu", "TVM's CUDA runtime is loaded, and finds no GPU"


def nvidia_gpu() -> dict[str, str]:
    """{"gpu": name, "driver": version} of the first NVIDIA GPU, as nvidia-smi reports them; {} without one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    asked = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    facts = [part.strip() for part in done.stdout.strip().partition("\n")[0].split(",")]
    if done.returncode or len(facts) != 2:
        return {}
    return dict(zip(("gpu", "driver"), facts, strict=True))


def metal_exists() -> bool:
    """Whether TVM finds a GPU through Metal."""
    import tvm

    return bool(tvm.metal(0).exist)
