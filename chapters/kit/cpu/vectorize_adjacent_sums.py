"""Vectorizes a reduction over adjacent results, so that it reads memory in stored order."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tvm
from tvm import sym, tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import For, ForKind

from chapters.kit.cpu.cache_control import CACHE_LINE
from chapters.kit.cpu.matmul_tile import largest_divisor
from chapters.kit.cpu.vector_registers import fills_vectors
from chapters.kit.ir.tensor_ir import mentions, nodes, substitute


def vectorize_adjacent_sums(sch: Schedule, block: SBlockRV) -> Schedule:
    """Vectorize the reduction `block` over adjacent elements of its result, if it reads adjacent elements for them.

    The loop over the vector moves inside the reduction's loops. So a vector of sums stays in a register, and memory is
    read in stored order. Each sum adds its terms in the same order as before. Returns a new schedule, or `sch` itself
    if the block is not such a reduction. `sch` is not changed, even where TVM refuses a step with a ScheduleError.
    """
    realize, loops = get_realize(sch, block), sch.get_loops(block)
    summed = reduced_values(realize)
    inner = [loop for loop in loops if mentions(summed, sch.get(loop).loop_var)]
    if not inner or len(inner) == len(loops) or not reads_adjacent_elements(realize.block):
        return sch
    last = loops[len(loops) - len(inner) - 1]  # where the reduction's loops are the innermost
    extent, axis = sch.get(last).extent, realize.iter_values[_last_axis(realize.block)]
    if not axis.same_as(sch.get(last).loop_var) or not isinstance(extent, tirx.IntImm):
        return sch
    reducing = [sch.get(loop) for loop in inner]
    if any(loop.kind != ForKind.SERIAL for loop in (sch.get(last), *reducing)):
        return sch
    if not initializes_first(realize, reducing):
        return sch
    line = CACHE_LINE * 8 // realize.block.writes[0].source.dtype.bits
    width = largest_divisor(int(extent), line) if int(extent) > 0 else 1
    if width == 1:
        return sch
    trial = sch.copy()
    _, lane = trial.split(last, [None, width])
    trial.reorder(*inner, lane)
    trial.vectorize(lane)
    trial.decompose_reduction(block, inner[0])
    return trial


def initialize_sums(sch: Schedule) -> None:
    """Initialize each sum of a symbolic number of terms before its loops: there may be no first iteration."""
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        summed = reduced_values(get_realize(sch, block))
        loops = [one for one in sch.get_loops(block) if mentions(summed, sch.get(one).loop_var)]
        symbolic = any(not isinstance(sch.get(one).extent, tirx.IntImm) for one in loops)
        if symbolic and sch.get(block).init is not None:
            with contextlib.suppress(ScheduleError):
                sch.decompose_reduction(block, loops[0])


def initializes_first(realize: SBlockRealize, loops: Sequence[For]) -> bool:
    """Whether a reduction's block initializes its result in the first iteration of the reduction's `loops`.

    It initializes where each of its reduction axes has its first value. A block that never gets there adds to the old
    contents of its result.
    """
    if any(mentions(realize.predicate, loop.loop_var) for loop in loops):
        return False
    first = {loop.loop_var: loop.min for loop in loops}
    bound = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return all(
        sym.Analyzer().can_prove_equal(substitute(value, first), axis.dom.min)
        for axis, value in bound
        if axis.iter_type != tirx.IterVar.DataPar
    )


def reads_adjacent_elements(block: SBlock) -> bool:
    """Whether `block`, a sum in one statement, reads only adjacent elements along its result's last axis."""
    if not isinstance(block.body, tirx.BufferStore) or _last_axis(block) is None:
        return False
    if not fills_vectors(block.body.buffer) or str(block.body.buffer.dtype) == "bfloat16":
        return False  # TVM cannot compile a vector of sums that are stored as bfloat16
    axis = block.iter_vars[_last_axis(block)].var
    found = [load.indices for load in nodes(block.body.value, TensorLoad) if mentions(load, axis)]
    adjacent = all(at[-1].same_as(axis) and not mentions(list(at[:-1]), axis) for at in found)
    return adjacent and len(found) > 1  # one of them is the sum itself


def _last_axis(block: SBlock) -> int | None:
    """The number of the axis of `block` that is its result's last index; None if that index is not an axis."""
    for index in list(block.body.indices)[-1:]:
        for n, axis in enumerate(block.iter_vars):
            if axis.var.same_as(index):
                return n
    return None


def get_realize(sch: Schedule, block: SBlockRV) -> SBlockRealize:
    """The SBlockRealize around `block`, with the values of its axes."""
    return tvm.get_global_func("s_tir.schedule.GetSBlockRealize")(sch, block)


def reduced_values(realize: SBlockRealize) -> list[Expr]:
    """The values of the block's axes that are not data-parallel."""
    bound = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return [value for axis, value in bound if axis.iter_type != tirx.IterVar.DataPar]
