"""A schedule rule: dlight's rule for reductions on a CPU, for kernels whose sums it computes once, and no products.

In this release the rule (`tvm/s_tir/dlight/cpu/reduction.py`) assumes that the outermost axes that all blocks seem to
share are rows. With a single row, that axis is gone, and the outermost remaining axis runs over the elements of the
result. The rule treats each element as a row, and for each it computes the norm of the only row again.

It also takes the product of two matrices for a reduction. Its schedule reads one of them down a column, so a product of
64 x 960 by 960 x 1056 with a bias and an activation takes four times as long as with ApplyCPUFallback's schedule.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError
from tvm.s_tir import dlight as dl
from tvm.target import Target

from chapters.kit.ir.row_index import is_one
from chapters.kit.ir.tensor_ir import loads, mentions, nodes


class ReductionOnce(dl.cpu.Reduction):
    """`dl.cpu.Reduction`, but it declines products, and kernels whose reduction it would repeat in a loop around it."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> Schedule | None:
        """The schedule of `func`, or None so that the next rule gets it.

        None too if TVM refuses a step of dlight's rule, as for a kernel that also returns its sums.
        """
        if products(func):
            return None
        try:
            schedules = super().apply(func, target, tunable)
        except ScheduleError:
            return None
        found = schedules if isinstance(schedules, list) else [schedules]
        once = all(sch is not None and not repeats_a_reduction(sch.mod["main"]) for sch in found)
        return schedules if once else None


def repeats_a_reduction(func: tirx.PrimFunc) -> bool:
    """Whether a reduction of `func` is in a loop that drives none of its axes, so that each iteration repeats it."""
    loops = [loop for loop in nodes(func.body, tirx.For) if not is_one(loop.extent)]
    return any(
        is_reduction(inner.block) and not mentions(inner.iter_values, loop.loop_var)
        for loop in loops
        for inner in nodes(loop.body, SBlockRealize)
    )


def is_reduction(block: SBlock) -> bool:
    """Whether an SBlock has a reduction axis."""
    return any(axis.iter_type == tirx.IterVar.CommReduce for axis in block.iter_vars)


def products(func: tirx.PrimFunc) -> list[SBlock]:
    """The blocks of `func` that sum products: the sum's steps move through two buffers or more."""
    found = []
    for block in filter(is_reduction, nodes(func.body, SBlock)):
        steps = [axis.var for axis in block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce]
        read = [loads(block.body, region.source) for region in block.reads]
        moved = [
            any(mentions(list(one.indices), step) for one in places for step in steps)
            for places in read
        ]
        if sum(moved) > 1:
            found.append(block)
    return found
