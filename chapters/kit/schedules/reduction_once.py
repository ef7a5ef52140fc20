"""A schedule rule: dlight's rule for reductions on a CPU, for kernels whose sums it computes once, and no products.

In this release the rule (`tvm/s_tir/dlight/cpu/reduction.py`) assumes that the outermost axes that all blocks seem to
share are rows. With a single row, that axis is gone, and the outermost remaining axis runs over the elements of the
result. The rule treats each element as a row, and for each it computes the norm of the only row again.

It also takes the product of two matrices for a reduction. Its schedule reads one of them down a column, so a product of
64 x 960 by 960 x 1056 with a bias and an activation takes four times as long as with ApplyCPUFallback's schedule.

And it adds up the terms of a row one by one. Where vectors divide a row, `vectorize_sums` is faster: 5 times for the
RMSNorm of 384 rows of 768, 7 times for their LayerNorm.
"""

from __future__ import annotations

import contextlib

from tvm import tirx
from tvm.s_tir import SBlockRealize, Schedule, ScheduleError
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.kit.cpu.vectorize_adjacent_sums import initialize_sums
from chapters.kit.ir.reductions import is_reduction, products
from chapters.kit.ir.row_index import is_one
from chapters.kit.ir.tensor_ir import mentions, nodes
from chapters.kit.schedules.unscheduled import needs_schedule
from chapters.kit.schedules.vectorize_rows import vectorize_sums


class ReductionOnce(dl.cpu.Reduction):
    """`vectorize_sums`, else `dl.cpu.Reduction`; no products, and no reduction that a loop around it would repeat."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """The schedule of `func`, or None so that the next rule gets it.

        None too if TVM refuses a step, as for a kernel that also returns its sums.
        """
        if products(func) or not needs_schedule(func):
            return None
        with contextlib.suppress(ScheduleError):
            if by_vectors := vectorize_sums(func, target):
                return by_vectors
        try:
            schedules = super().apply(func, target, tunable)
        except ScheduleError:
            return None
        found = schedules if isinstance(schedules, list) else [schedules]
        once = all(sch is not None and not repeats_reduction(sch.mod["main"]) for sch in found)
        for sch in found if once else ():
            initialize_sums(sch)
        return schedules if once else None


def repeats_reduction(func: tirx.PrimFunc) -> bool:
    """Whether a reduction of `func` is in a loop that drives none of its axes, so that each iteration repeats it."""
    loops = [loop for loop in nodes(func.body, tirx.For) if not is_one(loop.extent)]
    return any(
        is_reduction(inner.block) and not mentions(inner.iter_values, loop.loop_var)
        for loop in loops
        for inner in nodes(loop.body, SBlockRealize)
    )
