"""A schedule for every kernel of a CPU that has none: what is safe for any, and better than none."""

from __future__ import annotations

import contextlib

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import ForKind

from chapters.toolkit.ir.row_index import is_one
from chapters.toolkit.ir.tensor_ir import mentions, nodes, substitute
from chapters.toolkit.pipeline.reduction_once import has_one_turn
from chapters.toolkit.pipeline.side_by_side import add_up_side_by_side, realized, reduced_values


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
        count = len(row_loops(sch, block))  # the same ones stand outermost after a later split
        with contextlib.suppress(ScheduleError):
            sch = add_up_side_by_side(sch, block)
        rows = sch.get_loops(block)[:count]
        if rows and all(sch.get(loop).kind == ForKind.SERIAL for loop in rows):
            with contextlib.suppress(ScheduleError):
                sch.parallel(sch.fuse(*rows))
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)


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
            element = [r.min if is_one(r.extent) else None for r in region.region]
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
