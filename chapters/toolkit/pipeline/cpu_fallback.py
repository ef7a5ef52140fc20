"""What a CPU's kernels need after all other schedules: one for those that have none, and no threads for small ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.ir import Call, Expr, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import For, ForKind

from chapters.toolkit.cpu.matmul_tile import fills_vectors, largest_divisor
from chapters.toolkit.ir.tensor_ir import mentions, nodes, substitute
from chapters.toolkit.pipeline.planned_storage import evaluate
from chapters.toolkit.pipeline.reduction_once import has_one_turn

ALONE = 1 << 15  # steps that one thread has done before it has shared them with others
LINE_BYTES = 64  # of a cache, and of the longest vector register


def needs_schedule(func: tvm.ir.BaseFunc) -> bool:
    """Whether `func` is a PrimFunc made of blocks that no schedule has claimed; one without blocks is as it is meant.

    The attribute tirx.is_scheduled is how TVM's rules and ours tell each other.
    """
    return is_made_of_blocks(func) and "tirx.is_scheduled" not in (func.attrs or {})


def is_made_of_blocks(func: tvm.ir.BaseFunc) -> bool:
    """Whether `func` is a PrimFunc with a block "root" around the others, and no other of that name.

    TVM's sorts and scans have one block with a name of their own around code that no schedule can see into.
    """
    if not isinstance(func, tirx.PrimFunc) or not isinstance(func.body, SBlockRealize):
        return False
    roots = [block for block in nodes(func.body, SBlock) if block.name_hint == "root"]
    return len(roots) == 1 and roots[0].same_as(func.body.block)


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
    """`func`, marked as scheduled: elementwise blocks computed where they are read, sums in vectors, rows in parallel.

    func: a PrimFunc of blocks in loops. TVM checks each step, and one that it refuses is left out.
    """
    sch = Schedule(func)
    root = sch.get_sblock("root")
    for block in sch.get_child_blocks(root):
        with contextlib.suppress(ScheduleError):
            sch.compute_inline(block)
    for block in sch.get_child_blocks(root):
        count = len(
            row_loops(sch, block)
        )  # the loops that follow are no more than these, one of them split
        with contextlib.suppress(ScheduleError):
            sch = add_up_side_by_side(sch, block)
        rows = sch.get_loops(block)[:count]
        if rows and all(sch.get(loop).kind == ForKind.SERIAL for loop in rows):
            with contextlib.suppress(ScheduleError):
                sch.parallel(sch.fuse(*rows))
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)


def add_up_side_by_side(sch: Schedule, block: SBlockRV) -> Schedule:
    """Vectorise a reduction over neighbours of its result, where all that it reads for them lies side by side too.

    Then the loop over the vector stands inside those of the reduction: a vector of sums stays in a register, and memory
    is read as it lies. Each sum is added up in the same order as before. Returns another schedule, or `sch` itself
    where there is nothing to be done; `sch` stays as it is even if TVM refuses a step, with a ScheduleError.
    """
    realize, loops = realized(sch, block), sch.get_loops(block)
    summed = reduced_values(realize)
    inner = [loop for loop in loops if mentions(summed, sch.get(loop).loop_var)]
    if not inner or len(inner) == len(loops) or not reads_neighbours(realize.block):
        return sch
    last = loops[len(loops) - len(inner) - 1]  # where the reduction's loops are the innermost
    extent, axis = sch.get(last).extent, realize.iter_values[_last_axis(realize.block)]
    if not axis.same_as(sch.get(last).loop_var) or not isinstance(extent, tirx.IntImm):
        return sch
    turns = [sch.get(loop) for loop in inner]
    if any(loop.kind != ForKind.SERIAL for loop in (sch.get(last), *turns)):
        return sch
    if not begins(realize, turns):
        return sch
    line = LINE_BYTES * 8 // realize.block.writes[0].source.dtype.bits
    width = largest_divisor(int(extent), line) if int(extent) > 0 else 1
    if width == 1:
        return sch
    trial = sch.copy()
    _, lane = trial.split(last, [None, width])
    trial.reorder(*inner, lane)
    trial.vectorize(lane)
    trial.decompose_reduction(block, inner[0])
    return trial


def begins(realize: SBlockRealize, loops: Sequence[For]) -> bool:
    """Whether the first turn of `loops`, those of a reduction, is where its block sets the result to its first value.

    That is where each axis of the reduction is at its first; a block that is never there adds to what it finds.
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


def reads_neighbours(block: SBlock) -> bool:
    """Whether `block`, a sum in one statement, reads along its result's last axis only what lies side by side."""
    if not isinstance(block.body, tirx.BufferStore) or _last_axis(block) is None:
        return False
    if not fills_vectors(block.body.buffer) or str(block.body.buffer.dtype) == "bfloat16":
        return False  # TVM compiles no vector of sums that are stored as bfloat16
    axis = block.iter_vars[_last_axis(block)].var
    found = [load for load in nodes(block.body.value, TensorLoad) if mentions(load, axis)]
    return (
        len(found) > 1
        and all(  # one of them is the sum itself
            load.indices[-1].same_as(axis) and not mentions(list(load.indices[:-1]), axis)
            for load in found
        )
    )


def _last_axis(block: SBlock) -> int | None:
    """Which of the axes of `block` its result's last index is; None where that is none of them."""
    for index in list(block.body.indices)[-1:]:
        for n, axis in enumerate(block.iter_vars):
            if axis.var.same_as(index):
                return n
    return None


def realized(sch: Schedule, block: SBlockRV) -> SBlockRealize:
    """The statement in which `block` stands, with the values of its axes."""
    return tvm.get_global_func("s_tir.schedule.GetSBlockRealize")(sch, block)


def reduced_values(realize: SBlockRealize) -> list[Expr]:
    """What the axes of the block that are not parallel in data run through."""
    bound = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return [value for axis, value in bound if axis.iter_type != tirx.IterVar.DataPar]


def row_loops(sch: Schedule, block: SBlockRV) -> list[LoopRV]:
    """The outer loops of `block` to be run as one: each turn of them writes something else, and no index is dear.

    Without the innermost, which can become a vector. To find indices again, each turn divides by every extent but the
    first; where that is symbolic, the division takes longer than a small turn.
    """
    summed = reduced_values(realized(sch, block))
    rows: list[LoopRV] = []
    for loop in sch.get_loops(block)[:-1]:
        turns = sch.get(loop)
        if mentions(summed, turns.loop_var) or not (has_one_turn(turns) or are_apart(sch, loop)):
            break
        inner = not all(has_one_turn(sch.get(row)) for row in rows)
        if inner and not isinstance(turns.extent, tirx.IntImm):
            break
        rows.append(loop)
    return rows


def are_apart(sch: Schedule, loop: LoopRV) -> bool:
    """Whether each turn of `loop` leaves alone what another writes: all its blocks index it alike, by the loop.

    TVM asks of each block by itself, and only about the axes that the loop drives. A loop that drives none repeats its
    blocks, and may be the steps of an iteration; a buffer that two blocks share may be used again in each turn.
    """
    elements: dict[tirx.Var, list[list[Expr | None]]] = {}
    written: set[tirx.Var] = set()
    for block in sch.get_child_blocks(loop):
        realize = realized(sch, block)
        axes = [axis.var for axis in realize.block.iter_vars]
        values = dict(zip(axes, realize.iter_values, strict=True))
        written.update(region.source for region in realize.block.writes)
        for region in [*realize.block.reads, *realize.block.writes]:
            element = [r.min if _is_one(r.extent) else None for r in region.region]
            elements.setdefault(region.source, []).append(
                [index if index is None else substitute(index, values) for index in element]
            )
    var = sch.get(loop).loop_var
    return all(
        any(
            first is not None
            and mentions(first, var)
            and all(tvm_ffi.structural_equal(first, other) for other in others)
            for first, *others in zip(*elements[buffer], strict=True)
        )
        for buffer in written
    )


def _is_one(extent: Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


@tvm.transform.module_pass(opt_level=0, name="SmallKernelsAlone")
class SmallKernelsAlone:
    """Takes the threads from kernels that one thread has done before it has shared them with others.

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
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    turns = [[sch.get(loop).extent for loop in sch.get_loops(block)] for block in blocks]
    known = all(var.name in bounds for var in nodes(turns, tirx.Var)) and not nodes(turns, Call)
    if not turns or not known or nodes(turns, TensorLoad):
        return math.inf
    return max(math.prod(evaluate(extent, bounds) for extent in extents) for extents in turns)


def without_threads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with its parallel loops run one iteration after the other."""

    def serial(loop: For) -> For:
        if loop.kind != ForKind.PARALLEL:
            return loop
        how = (ForKind.SERIAL, loop.body, None, loop.annotations, loop.step, loop.span)
        return For(loop.loop_var, loop.min, loop.extent, *how)

    return func.with_body(tvm_ffi.structural_map(func.body, (For, serial)))
