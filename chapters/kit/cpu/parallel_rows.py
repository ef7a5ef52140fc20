"""Which loops of a CPU kernel may share their iterations among threads."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import ForKind

from chapters.kit.cpu.vectorize_adjacent_sums import get_realize, reduced_values
from chapters.kit.ir.row_index import is_one
from chapters.kit.ir.tensor_ir import mentions, substitute


def parallelize(sch: Schedule, rows: Sequence[LoopRV]) -> None:
    """Run the loops `rows` around a block as one parallel loop, if they are serial and TVM allows it."""
    if rows and all(sch.get(loop).kind == ForKind.SERIAL for loop in rows):
        with contextlib.suppress(ScheduleError):
            sch.parallel(sch.fuse(*rows))


def find_row_loops(sch: Schedule, block: SBlockRV) -> list[LoopRV]:
    """The outer loops of `block` that can run as one parallel loop: no two of their iterations write the same element.

    The innermost loop is not among them, because it can become a vector. Nor is a loop of symbolic extent inside
    another one: a parallel loop finds each loop's index by dividing by the extents of those inside it, and a division
    by a symbolic extent takes longer than a small iteration.
    """
    summed = reduced_values(get_realize(sch, block))
    rows: list[LoopRV] = []
    for handle in sch.get_loops(block)[:-1]:
        loop = sch.get(handle)
        if mentions(summed, loop.loop_var) or not (
            is_one(loop.extent) or are_disjoint(sch, handle)
        ):
            break
        is_inner = not all(is_one(sch.get(row).extent) for row in rows)
        if is_inner and not isinstance(loop.extent, tirx.IntImm):
            break
        rows.append(handle)
    return rows


def are_disjoint(sch: Schedule, loop: LoopRV) -> bool:
    """Whether no iteration of `loop` touches elements that another one writes.

    It holds if all blocks in the loop index each buffer that they write by the loop's variable, and in the same way.
    TVM checks each block by itself, and only the axes that the loop drives. That is not enough: a loop that drives no
    axis repeats its blocks, as the steps of an iterative method do, and each iteration may reuse a buffer that two
    blocks share.
    """
    elements: dict[tirx.Var, list[list[Expr | None]]] = {}
    written: set[tirx.Var] = set()
    for block in sch.get_child_blocks(loop):
        realize = get_realize(sch, block)
        axes = [axis.var for axis in realize.block.iter_vars]
        values = dict(zip(axes, realize.iter_values, strict=True))
        written.update(region.source for region in realize.block.writes)
        for region in [*realize.block.reads, *realize.block.writes]:
            found = ((r.min, is_one(r.extent)) for r in region.region)
            element = [substitute(index, values) if alone else None for index, alone in found]
            elements.setdefault(region.source, []).append(element)
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
