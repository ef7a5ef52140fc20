"""A schedule rule: dlight's rule for matrix products, which here finds the tensor cores of every NVIDIA GPU.

In this release the rule (`tvm/s_tir/dlight/gpu/matmul.py`) reads the number in the target's architecture with isdigit,
which is False for "90a" and for "100a". The products of the newest GPUs then get a schedule without tensor cores.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.kit.gpu.targets import compute_capability
from chapters.kit.ir.parse_alone import import_intrinsics


class MatmulOnTensorCores(dl.gpu.Matmul):
    """`dl.gpu.Matmul`, but a letter at the end of the architecture makes no difference."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """The schedule of `func`, or None so that the next rule gets it."""
        import_intrinsics()
        return super().apply(func, drop_arch_letter(target), tunable)


def drop_arch_letter(target: Target) -> Target:
    """`target` with architecture "sm_90" in place of "sm_90a"; any other target as it is.

    The letter allows more instructions; it takes none away, so a schedule for sm_90 is one for sm_90a.
    """
    number = compute_capability(target)
    return Target({**target.export(), "arch": f"sm_{number}"}) if number else target
