"""Programs that run or compile GPU code on a machine without a GPU: which are installed, and how to install the others.

They are optional: a check that needs a missing one is skipped and says why. Set the environment variable
FUSION_REQUIRE_EXECUTORS=1, as CI does, to make a missing one a failure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from chapters.kit.emulator import cuda_on_cpu, wgsl_on_vulkan
from chapters.kit.gpu import cuda_resources

REQUIRED = "FUSION_REQUIRE_EXECUTORS"
# exercises with a check that runs GPU code: as CUDA text alone, as text or as WGSL on float16, in either way on float32
CUDA_TEXT = ("8.4", "8.5")
WITH_FLOAT16 = ("4.2",)
EITHER_WAY = ("8.1", "8.2")
# how to get Linux, by sys.platform
LINUX = {
    "win32": "in WSL 2, where all of it runs as on Linux (`wsl --install` in an administrator's terminal)",
    "darwin": "in a container or a virtual machine, such as `docker run -it -v .:/course -w /course python:3.12 bash`",
}


@dataclass(frozen=True)
class Executor:
    """One of them. missing: why it is not here, "" if it is. install: how to install it, "" if this system cannot."""

    what: str
    missing: Callable[[], str]
    install: str


def executors() -> list[Executor]:
    """All executors, with the advice for this system."""
    linux = sys.platform == "linux"
    return [
        Executor(
            "CUDA kernels are run by g++, with one fiber per thread",
            cuda_on_cpu.missing,
            "sudo apt install g++"
            if linux
            else f"run the course in Linux: {LINUX.get(sys.platform, 'in a virtual machine')}",
        ),
        Executor(
            f"WGSL kernels are run by {wgsl_on_vulkan.device_name()}",
            wgsl_on_vulkan.missing,
            "optional: pip install -e '.[gpu]'"
            + (" && sudo apt install mesa-vulkan-drivers libvulkan1" if linux else ""),
        ),
        Executor(
            "CUDA kernels are compiled by NVRTC, which counts their registers",
            cuda_resources.missing,
            "optional: pip install -e '.[gpu]'" if linux else "",
        ),
    ]


def find_skipped() -> list[str]:
    """The exercises of which a check is skipped on this machine, in their order."""
    if not cuda_on_cpu.missing():
        return []
    found = [*CUDA_TEXT]
    if wgsl_on_vulkan.missing("float16"):
        found += WITH_FLOAT16
    if wgsl_on_vulkan.missing():
        found += EITHER_WAY
    return sorted(found, key=lambda one: tuple(map(int, one.split("."))))


def required() -> bool:
    """Whether a missing executor is a failure here."""
    return os.environ.get(REQUIRED, "") not in ("", "0")
