"""Which elements of a buffer a block touches in one iteration of the loops around it.

The answer comes from the block's indices, loops and predicate. What it declares in `T.reads` and `T.writes` may be
wrong: `find_undeclared` looks for an access that they do not cover.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import tirx
from tvm.ir import Range, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer, estimate_region_lower_bound, estimate_region_upper_bound
from tvm.tirx import For
from tvm_ffi import structural_equal

from chapters.kit.ir.tensor_ir import nodes, substitute


def covers(
    around: Sequence[For],
    writer: tuple[SBlockRealize, Sequence[For]],
    written: Sequence,
    reader: tuple[SBlockRealize, Sequence[For]],
    read: Sequence,
) -> bool:
    """Whether, in each iteration of the loops `around`, the elements at `written` include those at `read`.

    writer, reader: a block and all loops around it, among them `around`. written, read: indices of one buffer, each in
    the axes of its block. False means "not proved".
    """
    prove = Analyzer()
    for loop in around:
        prove.bind(loop.loop_var, Range.from_min_extent(loop.min, loop.extent))
    whole = _bound(around, *writer, written, estimate_region_lower_bound)
    part = _bound(around, *reader, read, estimate_region_upper_bound)
    if whole is None or part is None:
        return False
    return all(
        prove.can_prove(a.min_value <= b.min_value) and prove.can_prove(b.max_value <= a.max_value)
        for a, b in zip(whole, part, strict=True)
    )


def _bound(around, realize: SBlockRealize, loops: Sequence[For], indices, estimate):
    """The bounds of `indices` over the loops that are not among `around`; None if they cannot be found."""
    values = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    points = substitute(list(indices), {axis.var: value for axis, value in values})
    inner = [loop for loop in loops if not any(loop.same_as(outer) for outer in around)]
    ranges = {loop.loop_var: Range.from_min_extent(loop.min, loop.extent) for loop in inner}
    boxes = [Range.from_min_extent(point, 1) for point in points]
    return estimate(boxes, ranges, realize.predicate)


def find_undeclared(block: SBlock) -> str:
    """An access that the block makes and its reads or writes do not cover, or ""."""
    random = np.random.default_rng(3)
    axes = [(axis.var, int(axis.dom.extent)) for axis in block.iter_vars]
    written = [region.source for region in block.writes]
    loads = nodes([block.init, block.body], TensorLoad)
    made = [(x.source, x.indices, block.reads, "reads") for x in loads if x.source not in written]
    stores = nodes(block, tirx.BufferStore)
    made += [(x.buffer, x.indices, block.writes, "writes") for x in stores]
    for buffer, indices, declared, verb in made:
        boxes = [region for region in declared if region.source.same_as(buffer)]
        if any(structural_equal(indices, [axis.min for axis in box.region]) for box in boxes):
            continue
        for _ in range(12):
            point = {axis: tirx.IntImm("int32", int(random.integers(n))) for axis, n in axes}
            index = [_evaluate(i, point) for i in indices]
            if None in index:
                continue  # an index that is itself loaded: any element
            if not any(_is_inside(index, box, point) for box in boxes):
                at = ", ".join(f"{v.name}={x}" for v, x in point.items())
                return f"{verb} {buffer.name}{index} at {at}"
    return ""


def _evaluate(expr, point: dict) -> int | None:
    """What `expr` is at `point`, if that is a number."""
    value = Analyzer().simplify(substitute(expr, point))
    return int(value) if isinstance(value, tirx.IntImm) else None


def _is_inside(index: list[int], box, point: dict) -> bool:
    """Whether the element at `index` lies in the region `box` at `point`."""
    for i, axis in zip(index, box.region, strict=True):
        low, size = _evaluate(axis.min, point), _evaluate(axis.extent, point)
        if low is None or size is None or not low <= i < low + size:
            return False
    return True
