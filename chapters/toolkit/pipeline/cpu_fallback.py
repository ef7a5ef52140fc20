"""What a CPU's kernels need after all other schedules: one for those that have none, and no threads for small ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize, Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import For, ForKind

from chapters.toolkit.ir.tensor_ir import mentions
from chapters.toolkit.pipeline.planned_storage import evaluate

ALONE = 1 << 17  # steps that one thread has done before others have woken up


def needs_schedule(func: tvm.ir.BaseFunc) -> bool:
    """Whether `func` is a PrimFunc made of blocks that no schedule has claimed; one without blocks is as it is meant.

    The attribute tirx.is_scheduled is how TVM's rules and ours tell each other.
    """
    return is_made_of_blocks(func) and "tirx.is_scheduled" not in (func.attrs or {})


def is_made_of_blocks(func: tvm.ir.BaseFunc) -> bool:
    """Whether `func` is a PrimFunc with a block "root" around the others.

    TVM's sorts and scans have one block with a name of their own around code that no schedule can see into.
    """
    if not isinstance(func, tirx.PrimFunc) or not isinstance(func.body, SBlockRealize):
        return False
    return func.body.block.name_hint == "root"


@tvm.transform.module_pass(opt_level=0, name="CPUFallback")
class CPUFallback:
    """Schedules each PrimFunc that has no schedule, so that none is left without one."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for gvar, func in mod.functions_items():
            if needs_schedule(func):
                result[gvar] = schedule_any(func)
        return result


def schedule_any(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func`, marked as scheduled, with elementwise blocks computed where they are read and outer loops in parallel.

    func: a PrimFunc of blocks in loops. TVM checks each step, and one that it refuses is left out.
    """
    sch = Schedule(func)
    root = sch.get_sblock("root")
    for block in sch.get_child_blocks(root):
        with contextlib.suppress(ScheduleError):
            sch.compute_inline(block)
    for block in sch.get_child_blocks(root):
        rows = row_loops(sch, block)
        if rows and all(sch.get(loop).kind == ForKind.SERIAL for loop in rows):
            with contextlib.suppress(ScheduleError):
                sch.parallel(sch.fuse(*rows))
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)


def row_loops(sch: Schedule, block: SBlockRV) -> list[LoopRV]:
    """The outer loops of `block` that drive no reduction; without the innermost, which can become a vector."""
    realize = tvm.get_global_func("s_tir.schedule.GetSBlockRealize")(sch, block)
    bound = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    summed = [value for axis, value in bound if axis.iter_type != tirx.IterVar.DataPar]
    rows: list[LoopRV] = []
    for loop in sch.get_loops(block)[:-1]:
        if mentions(summed, sch.get(loop).loop_var):
            break
        rows.append(loop)
    return rows


@tvm.transform.module_pass(opt_level=0, name="SmallKernelsAlone")
class SmallKernelsAlone:
    """Takes the threads from kernels that one thread has done before others have woken up.

    bounds: the largest value of symbolic dimensions, by name. A kernel with a dimension that is not in it keeps its
    threads, and so does one that is not made of blocks: it decides for itself, when it runs.
    """

    def __init__(self, bounds: Mapping[str, int]):
        self.bounds = dict(bounds)

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc) and steps(func, self.bounds) <= ALONE:
                result[gvar] = without_threads(func)
        return result


def steps(func: tirx.PrimFunc, bounds: Mapping[str, int]) -> float:
    """How often the innermost loops of the largest block of `func` run, at most; infinity where that is not known."""
    if not is_made_of_blocks(func):
        return math.inf
    sch = Schedule(func)
    try:
        return max(
            math.prod(evaluate(sch.get(loop).extent, bounds) for loop in sch.get_loops(block))
            for block in sch.get_child_blocks(sch.get_sblock("root"))
        )
    except ValueError:
        return math.inf


def without_threads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its parallel loops run one iteration after the other."""

    def serial(loop: For) -> For:
        if loop.kind != ForKind.PARALLEL:
            return loop
        how = (ForKind.SERIAL, loop.body, None, loop.annotations, loop.step, loop.span)
        return For(loop.loop_var, loop.min, loop.extent, *how)

    return func.with_body(tvm_ffi.structural_map(func.body, (For, serial)))
