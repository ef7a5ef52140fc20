"""Gives every CPU kernel without a schedule one that is safe for any kernel and faster than none."""

from __future__ import annotations

import contextlib

import tvm
from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from chapters.kit.cpu.parallel_rows import find_row_loops, parallelize
from chapters.kit.cpu.vectorize_adjacent_sums import initialize_sums, vectorize_adjacent_sums
from chapters.kit.schedules.merge_elementwise import inline_where_it_pays
from chapters.kit.schedules.unscheduled import map_unscheduled
from chapters.kit.schedules.warn_of_fallback import warn_of_products


@tvm.transform.module_pass(opt_level=0, name="ApplyCPUFallback")
class ApplyCPUFallback:
    """Schedules each PrimFunc made of blocks that no schedule has claimed; warns of large products among them."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        warn_of_products(mod)
        return map_unscheduled(mod, schedule_any)


def schedule_any(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, marked as scheduled: elementwise blocks inlined where it pays, sums vectorized, rows in parallel.

    func: a PrimFunc of blocks in loops. TVM checks each step; a step that it refuses is left out.
    """
    sch = Schedule(func)
    inline_where_it_pays(sch)
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        count = len(find_row_loops(sch, block))  # the same loops are outermost after a later split
        with contextlib.suppress(ScheduleError):
            sch = vectorize_adjacent_sums(sch, block)
        parallelize(sch, sch.get_loops(block)[:count])
    initialize_sums(sch)
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)
