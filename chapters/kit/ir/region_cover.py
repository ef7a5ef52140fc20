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
    inside = nodes([block.init, block.body], For)
    ranges = [(axis.var, axis.dom.min, axis.dom.extent) for axis in block.iter_vars]
    ranges += [(loop.loop_var, loop.min, loop.extent) for loop in inside]
    known = [one for one in ranges if all(isinstance(n, tirx.IntImm) for n in one[1:])]
    local = [buffer for one in nodes(block, SBlock) for buffer in one.alloc_buffers]
    written = [region.source for region in block.writes]
    loads = nodes([block.init, block.body], TensorLoad)
    made = [(x.source, x.indices, block.reads, "reads") for x in loads if x.source not in written]
    stores = nodes(block, tirx.BufferStore)
    made += [(x.buffer, x.indices, block.writes, "writes") for x in stores]
    for buffer, indices, declared, verb in made:
        boxes = [region for region in declared if region.source.same_as(buffer)]
        if any(buffer.same_as(one) for one in local):
            continue
        if not boxes:
            return f"{verb} {buffer.name}{list(indices)}"
        if any(_begins_at(indices, box) for box in boxes):
            continue
        for _ in range(12):
            point = {
                var: tirx.IntImm("int32", int(random.integers(n)) + int(low))
                for var, low, n in known
            }
            index = [_evaluate(i, point) for i in indices]
            unknown = [one for one, at in zip(indices, index, strict=True) if at is None]
            if not all(nodes(one, TensorLoad) for one in unknown):
                continue  # it depends on a size that is not known
            if not any(_is_inside(index, box, point) for box in boxes):
                at = ", ".join(f"{v.name}={x}" for v, x in point.items())
                return f"{verb} {buffer.name}{index} at {at}"
    return ""


def _evaluate(expr, point: dict) -> int | None:
    """What `expr` is at `point`, if that is a number."""
    value = Analyzer().simplify(substitute(expr, point))
    return int(value) if isinstance(value, tirx.IntImm) else None


def _begins_at(indices, box) -> bool:
    """Whether the region `box` surely has an element, and its first one is at `indices`."""
    prove = Analyzer()
    mins, extents = zip(*[(axis.min, axis.extent) for axis in box.region], strict=True)
    return structural_equal(indices, list(mins)) and all(prove.can_prove(n >= 1) for n in extents)


def _is_inside(index: list[int | None], box, point: dict) -> bool:
    """Whether the element at `index` lies in the region `box` at `point`. None may be any of its dimension."""
    for i, axis, dim in zip(index, box.region, box.source.shape, strict=True):
        low, size = _evaluate(axis.min, point), _evaluate(axis.extent, point)
        first, last = (0, _evaluate(dim - 1, point)) if i is None else (i, i)
        if low is None or size is None or last is None or not low <= first <= last < low + size:
            return False
    return True
