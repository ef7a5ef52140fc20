"""What executes or compiles GPU code on a machine without a GPU: which of it is here, and what to install for the rest.

Nothing of it is needed for the course: what cannot be run is skipped with its reason. Where it must be here, as in CI,
the environment variable FUSION_REQUIRE_EXECUTORS=1 makes a missing one a failure.
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
    """One way. missing: why it is not here, "" if it is. install: what to do about that, "" where nothing can be."""

    what: str
    missing: Callable[[], str]
    install: str


def executors() -> list[Executor]:
    """All of them, with the advice for this system."""
    linux = sys.platform == "linux"
    return [
        Executor(
            "CUDA kernels are run by g++, a fiber for every thread",
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
