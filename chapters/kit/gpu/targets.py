"""Targets for kernels that are written, counted and run here: an architecture or a language, and limits where asked."""

from __future__ import annotations

from tvm.target import Target


def cuda(arch: str) -> Target:
    """The CUDA target of an architecture, such as "sm_80"."""
    return Target({"kind": "cuda", "arch": arch})


CUDA = cuda("sm_90a")
WEBGPU = Target({"kind": "webgpu", "max_num_threads": 256})
# with the limits of every NVIDIA GPU, which dlight's rules ask for
DLIGHT_CUDA = Target(
    {
        "kind": "cuda",
        "arch": "sm_90a",
        "max_shared_memory_per_block": 49152,
        "max_threads_per_block": 1024,
    }
)
