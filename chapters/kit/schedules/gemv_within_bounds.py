"""A schedule rule: dlight's rule for matrix-vector products, used only where it does not store beyond the result.

In this release the rule (`tvm/s_tir/dlight/gpu/gemv.py`) gives each block of threads a fixed number of results. If that
number does not divide the rows, it guards the sums of the last block but not its stores, which write beyond the end.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.kit.ir.tensor_ir import mentions, nodes, thread_axis


class GEMVWithinBounds(dl.gpu.GEMV):
    """`dl.gpu.GEMV`, but it declines a kernel whose last block of threads would be partly outside the result."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """The schedule of `func`, or None so that the next rule gets it."""
        schedules = super().apply(func, target, tunable)
        found = schedules if isinstance(schedules, list) else [schedules]
        whole = all(sch is not None and has_whole_blocks(sch.mod["main"]) for sch in found)
        return schedules if whole else None


def has_whole_blocks(func: tirx.PrimFunc) -> bool:
    """Whether no sblock of `func` is guarded by a predicate on which block of threads it runs in."""
    loops = nodes(func.body, tirx.For)
    grid = [loop.loop_var for loop in loops if thread_axis(loop).startswith("blockIdx")]
    guards = [realize.predicate for realize in nodes(func.body, SBlockRealize)]
    return not any(mentions(guard, block) for guard in guards for block in grid)
