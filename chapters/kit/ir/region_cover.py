"""Which elements of a buffer a block touches in one iteration of the loops around it.

The answer comes from the block's indices, loops and predicate. What it declares in `T.reads` and `T.writes` is not
looked at, because a declaration may be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm.ir import Range
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer, estimate_region_lower_bound, estimate_region_upper_bound
from tvm.tirx import For

from chapters.kit.ir.tensor_ir import substitute


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
