"""A schedule rule: dlight's for reductions on a CPU, where it computes each sum once.

In this release the rule (`tvm/s_tir/dlight/cpu/reduction.py`) takes the outermost axes that all blocks seem to share
for rows. If there is one row only, its axis is gone, and the outermost axis that is left runs over the elements of the
result. The rule takes those for rows, and computes the norm of the one row again for each of them.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.kit.ir.row_index import is_one
from chapters.kit.ir.tensor_ir import mentions, nodes


class ReductionOnce(dl.cpu.Reduction):
    """`dl.cpu.Reduction`, but it declines a kernel whose reduction it would repeat in a loop around it."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """The schedule of `func`, or None so that the next rule gets it.

        It also declines where TVM refuses a step of dlight's rule, as for a kernel that returns its sums too.
        """
        try:
            schedules = super().apply(func, target, tunable)
        except ScheduleError:
            return None
        found = schedules if isinstance(schedules, list) else [schedules]
        once = all(sch is not None and not repeats_a_reduction(sch.mod["main"]) for sch in found)
        return schedules if once else None


def repeats_a_reduction(func: tirx.PrimFunc) -> bool:
    """Whether a block of `func` that reduces is in a loop that does not change its axes: each iteration repeats it."""
    loops = [loop for loop in nodes(func.body, tirx.For) if not is_one(loop.extent)]
    return any(
        is_reduction(inner.block) and not mentions(inner.iter_values, loop.loop_var)
        for loop in loops
        for inner in nodes(loop.body, SBlockRealize)
    )


def is_reduction(block: SBlock) -> bool:
    """Whether an SBlock has a reduction axis."""
    return any(axis.iter_type == tirx.IterVar.CommReduce for axis in block.iter_vars)
