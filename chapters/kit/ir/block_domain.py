"""Which points of its iteration domain an sblock visits, proved with TVM's affine analysis.

Each answer is True only where there is a proof: False means "not proved".
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm.ir import Range, Var
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer, detect_iter_map
from tvm.tirx import For


def same_range(one: Range, other: Range) -> bool:
    """Whether two ranges provably begin and end at the same place."""
    pairs = ((one.min, other.min), (one.extent, other.extent))
    return all(Analyzer().can_prove_equal(*pair) for pair in pairs)


def visits_each_point_once(realize: SBlockRealize, loops: Sequence[For]) -> bool:
    """Whether `loops` run the block for each point of its axes' domain exactly once, and for no other point.

    A loop may be split, fused or reordered in any way, and a predicate may cut off what a split has added.
    """
    prove = Analyzer()
    if any(loop.step is not None and not prove.can_prove_equal(loop.step, 1) for loop in loops):
        return False
    axes = realize.block.iter_vars
    if not axes:
        return all(prove.can_prove_equal(loop.extent, 1) for loop in loops)
    ranges = {loop.loop_var: Range.from_min_extent(loop.min, loop.extent) for loop in loops}
    domains = [axis.dom for axis in axes]
    return fills(realize.iter_values, ranges, domains, realize.predicate)


def fills(values: Sequence, ranges: dict[Var, Range], domains: Sequence[Range], where=True) -> bool:
    """Whether `values` take each point of the box `domains` exactly once while the variables run over `ranges`.

    where: a predicate that cuts off some points of `ranges`.
    """
    found = detect_iter_map(values, ranges, where, "bijective").indices
    return len(found) == len(domains) and all(map(_runs_through, found, domains))


def _runs_through(values, domain: Range) -> bool:
    """Whether `values`, an index in TVM's normal form, runs from the first value to the last in steps of one."""
    prove = Analyzer().can_prove_equal
    if len(values.args) > 1 or not all(prove(part.scale, 1) for part in values.args):
        return False
    extent = values.args[0].extent if values.args else 1
    return same_range(Range.from_min_extent(values.base, extent), domain)


def is_injective(indices: Sequence, ranges: dict[Var, Range]) -> bool:
    """Whether no two points of `ranges` (variable -> its range) give the same `indices`."""
    wide = {v: r for v, r in ranges.items() if not Analyzer().can_prove_equal(r.extent, 1)}
    if not wide:
        return True
    return len(detect_iter_map(indices, ranges, True, "bijective").indices) == len(indices)
