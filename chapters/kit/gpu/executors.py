"""Programs that run or compile GPU code on a machine without a GPU: which are installed, and how to install the others.

They are optional: a check that needs a missing one is skipped and says why. Set the environment variable
FUSION_REQUIRE_EXECUTORS=1, as CI does, to make a missing one a failure.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from chapters.kit.gpu import cuda_on_cpu, cuda_resources, wgsl_on_vulkan

REQUIRED = "FUSION_REQUIRE_EXECUTORS"


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
            "optional: sudo apt install g++" if linux else "",
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


def required() -> bool:
    """Whether a missing executor is a failure here."""
    return os.environ.get(REQUIRED, "") not in ("", "0")
