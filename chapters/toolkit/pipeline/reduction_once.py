"""dlight's rule for reductions on a CPU, where each sum is computed once.

In this release the rule (`tvm/s_tir/dlight/cpu/reduction.py`) takes the outermost axes that all blocks seem to share
for rows. Where there is one row only, its axis is gone, and what is left is an axis of the result: the rule then
computes the whole norm of a row again for each of its elements.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.toolkit.ir.row_index import is_one
from chapters.toolkit.ir.tensor_ir import mentions, nodes


class ReductionOnce(dl.cpu.Reduction):
    """`dl.cpu.Reduction`, declining what it would schedule with a reduction repeated in a loop around it."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """The schedule of `func`, or None so that the next rule gets it.

        dlight's rule takes some kernels that TVM then refuses to schedule so, such as one that returns its sums too.
        """
        try:
            schedules = super().apply(func, target, tunable)
        except ScheduleError:
            return None
        found = schedules if isinstance(schedules, list) else [schedules]
        once = all(sch is not None and not repeats_a_reduction(sch.mod["main"]) for sch in found)
        return schedules if once else None


def repeats_a_reduction(func: tirx.PrimFunc) -> bool:
    """Whether a block of `func` that reduces stands in a loop of more than one turn that changes nothing for it."""
    loops = [loop for loop in nodes(func.body, tirx.For) if not has_one_turn(loop)]
    return any(
        is_reduction(inner.block) and not mentions(inner.iter_values, loop.loop_var)
        for loop in loops
        for inner in nodes(loop.body, SBlockRealize)
    )


def is_reduction(block: SBlock) -> bool:
    """Whether an SBlock has a reduction axis."""
    return any(axis.iter_type == tirx.IterVar.CommReduce for axis in block.iter_vars)


def has_one_turn(loop: tirx.For) -> bool:
    """Whether `loop` is known to run once."""
    return is_one(loop.extent)
