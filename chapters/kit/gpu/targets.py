"""Targets for GPU code that is generated without a GPU."""

from __future__ import annotations

import re

from tvm.target import Target


def cuda(arch: str) -> Target:
    """The CUDA target of an architecture, such as "sm_80"."""
    return Target({"kind": "cuda", "arch": arch})


def compute_capability(target: Target) -> int:
    """The number in a CUDA target's architecture: 90 for "sm_90" and for "sm_90a"; 0 for a target of another kind."""
    found = re.fullmatch(r"sm_(\d+)[a-z]?", str(target.attrs.get("arch", "")))
    return int(found[1]) if found and target.kind.name == "cuda" else 0


CUDA = cuda("sm_90a")
WEBGPU = Target({"kind": "webgpu", "max_num_threads": 256})
# dlight's rules need limits: these hold for every NVIDIA GPU
DLIGHT_CUDA = Target(
    {
        "kind": "cuda",
        "arch": "sm_90a",
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": 1024,
    }
)
