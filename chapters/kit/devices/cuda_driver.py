"""What the NVIDIA driver says when TVM's CUDA runtime finds no GPU. Only the standard library is imported here."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable

MODE = "TVM_CUDA_COMPILE_MODE"  # TVM's choice of a compiler: "nvrtc", or "nvcc"
INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver
RUNTIME = "cudart64_13.dll" if sys.platform == "win32" else "libcudart.so.13"
DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def _load(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def load_torch_first() -> None:
    """Import PyTorch if it is installed and there is an NVIDIA driver: it brings the CUDA runtime that TVM looks for.

    Call it before the first import of TVM.
    """
    if _load(DRIVER) and importlib.util.find_spec("torch"):
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")


def choose_compiler() -> None:
    """Let TVM compile CUDA text by nvcc where the package for NVRTC is missing, unless MODE is set."""
    if not _has_nvrtc() and shutil.which("nvcc"):
        os.environ.setdefault(MODE, "nvcc")


def has_compiler() -> bool:
    """Whether this machine can compile CUDA text for TVM."""
    return _has_nvrtc() or shutil.which("nvcc") is not None


def _has_nvrtc() -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # of the package that it is in
        return importlib.util.find_spec("cuda.bindings") is not None
    return False


def too_old(load: Callable[[str], ctypes.CDLL | None] = _load) -> str:
    """One sentence if the NVIDIA driver is older than the CUDA runtime that TVM uses; "" if that is not the trouble."""
    runtime = load(RUNTIME)
    if runtime is None or load(DRIVER) is None:
        return ""
    count = ctypes.c_int()
    if runtime.cudaGetDeviceCount(ctypes.byref(count)) != INSUFFICIENT_DRIVER:
        return ""
    supports, needs = (_version(runtime, name) for name in ("Driver", "Runtime"))
    major = needs.partition(".")[0]
    return (
        f"The NVIDIA driver here is too old: it supports CUDA {supports}, and TVM's CUDA runtime is {needs}. "
        f"Install a driver for CUDA {major} (nvidia-smi shows the version in its first line), and restart"
    )


def _version(runtime: ctypes.CDLL, which: str) -> str:
    """ "12.2" for the number 12020, which is how CUDA counts."""
    number = ctypes.c_int()
    runtime[f"cuda{which}GetVersion"](ctypes.byref(number))
    return f"{number.value // 1000}.{number.value % 1000 // 10}"
