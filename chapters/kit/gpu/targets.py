"""Targets for GPU code that is generated without a GPU."""

from __future__ import annotations

from tvm.target import Target


def cuda(arch: str) -> Target:
    """The CUDA target of an architecture, such as "sm_80"."""
    return Target({"kind": "cuda", "arch": arch})


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
