"""Random programs against `fuse_reduction_epilogue`: it computes the same, or it refuses and leaves all as it was.

The reference is the interpreter of chapters/checking, on integers that every dtype holds exactly; the fused program is
compiled and run with guard zones around its arrays. `FUSION_DRAWS=5000 pytest tests/ch06/test_property.py` draws more.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import strategies as st
from tvm import s_tir
from tvm.s_tir import SBlock
from tvm.s_tir.analysis import get_sblock_access_region

from chapters.checking.draws import CHOICES
from chapters.checking.interpret import OutOfBounds, interpret
from chapters.kit.cases.guard_zones import QUICK, run_compiled
from chapters.kit.ir.tensor_ir import nodes, with_fields
from solutions.ch06_reduction_epilogue import fuse_reduction_epilogue as primitives
from tests.support import random_reductions
from tests.support.kernels import try_draws
from tests.support.random_reductions import Draw, equal

PARTS = range(-(-int(os.environ.get("FUSION_DRAWS", "300")) // random_reductions.PER_TEST))


@st.composite
def draws(draw) -> Draw:
    choices = random_reductions.Choices(draw(CHOICES))
    return Draw(
        random_reductions.program(choices, random_reductions.SUMS),
        random_reductions.moves(choices, ("mm", "bias", "other"), choices.one((0, 0, 2, 4))),
        random_reductions.moves(choices, ("mm", "other"), choices.one((0, 2, 4))),
        choices.one((None, None, None, 0, 1, 2)),
    )


def _interpreted(func: tvm.tirx.PrimFunc, arguments: list) -> list[np.ndarray]:
    copies = [array.copy() for array in arguments]
    interpret(func, copies)
    return copies


def _check_regions(mod: tvm.IRModule, name: str) -> None:
    """The block declares every buffer that it reads, and what it writes."""
    sch = s_tir.Schedule(mod)
    block = sch.get(sch.get_sblock(name))
    buffers = {v: v for v in nodes(block, tvm.ir.Var) if tvm.tirx.is_buffer_var(v)}
    reads, writes, _ = get_sblock_access_region(block, buffers)
    declared = {region.source for region in block.reads}
    written = {region.source for region in block.writes}
    assert {r.source for r in reads} - written <= declared
    assert len(declared) == len(block.reads), "one region per buffer"
    assert {w.source for w in writes} == written


@pytest.mark.parametrize("part", PARTS)
def test_what_is_fused_computes_the_same(part):
    """And the module is the built-in's where that is right, once two places are mended in which ours is better."""
    fused, right = [], []

    def check(draw: Draw) -> None:
        sch = draw.schedule()
        given, arguments = sch.mod, draw.program.arguments
        if not random_reductions.try_fusing(sch, primitives.fuse_reduction_epilogue):
            return
        fused.append(draw)
        expected = _interpreted(given["main"], arguments)
        assert equal(_interpreted(sch.mod["main"], arguments), expected)
        _check_regions(sch.mod, "mm")
        checked = s_tir.Schedule(given, debug_mask="all")
        primitives.fuse_reduction_epilogue(checked, "mm", "bias")
        assert tvm_ffi.structural_equal(checked.mod, sch.mod)
        if theirs := _fuse_with_built_in(draw, given):
            right.append(draw)
            _mend(theirs, given, sch.get(sch.get_sblock("mm")).reads)
            tvm.ir.assert_structural_equal(sch.mod, theirs.mod)
        random_reductions.reschedule(sch, draw.after)
        _decompose(sch, draw.decompose)
        assert equal(run_compiled(sch.mod, arguments, QUICK), expected), sch.mod

    try_draws(check, draws(), number=random_reductions.PER_TEST, part=part)
    assert len(fused) >= random_reductions.PER_TEST // 5, "the draws are too odd to test anything"
    assert len(right) >= random_reductions.PER_TEST // 20, "too odd to compare anything"


def _decompose(sch: s_tir.Schedule, at: int | None) -> None:
    """Take the init out of the fused block, and refresh the regions of the two."""
    if at is None:
        return
    loops = sch.get_loops("mm")
    loop = loops[at % len(loops)]
    if len(sch.get_child_blocks(loop)) > 1:
        return  # decompose_reduction moves the init past other blocks of the loop, also past one that writes its bias
    try:
        init = sch.decompose_reduction("mm", loop)
    except s_tir.ScheduleError:
        return
    for block in (init, "mm_update"):
        primitives.refresh_regions(sch, block)


def _fuse_with_built_in(draw: Draw, given: tvm.IRModule) -> s_tir.Schedule | None:
    """What the built-in makes of the program; None if it refuses, or if that is wrong."""
    if 1 in draw.program.sizes:
        return None  # on an axis of one point, a wrong index is right by chance
    theirs = s_tir.Schedule(given)
    try:
        theirs.fuse_reduction_epilogue("mm", "bias")
    except (s_tir.ScheduleError, tvm.error.InternalError, ValueError):
        return None
    inputs = [_others(draw.program.arguments, seed) for seed in range(4)]
    right = all(_computes(theirs.mod, _interpreted(given["main"], a), a) for a in inputs)
    return theirs if right else None


def _others(arguments: list[np.ndarray], seed: int) -> list[np.ndarray]:
    """Other arguments, without a zero that would hide a mistake; the table of indices stays a permutation."""
    numbers = np.random.default_rng(seed)
    others = [numbers.integers(1, 10, a.shape).astype(a.dtype) for a in arguments]
    others[random_reductions.TABLE] = numbers.permuted(arguments[random_reductions.TABLE])
    return others


def _computes(mod: tvm.IRModule, expected: list[np.ndarray], arguments: list) -> bool:
    try:
        return equal(_interpreted(mod["main"], arguments), expected)
    except (OutOfBounds, ValueError):
        return False


def _mend(theirs: s_tir.Schedule, given: tvm.IRModule, reads: list) -> None:
    """Do to the built-in's result the two things that ours does better: no dead `temp`, no lost read."""
    first = s_tir.Schedule(given)
    temp = first.get(first.get_sblock("mm")).writes[0].source
    for block in nodes(theirs.mod["main"].body, SBlock):
        kept = [buffer for buffer in block.alloc_buffers if not buffer.same_as(temp)]
        if len(kept) < len(block.alloc_buffers):
            new = with_fields(block, alloc_buffers=kept)
            theirs.state.replace(theirs.state.get_sref(block), new, {block: new})
    mine, sref = {r.source: r for r in reads}, theirs.get_sref(theirs.get_sblock("mm"))
    declared = sref.stmt.reads
    assert len(declared) == len(reads), "the built-in loses a region of a buffer, never a buffer"
    mended = [mine[region.source] for region in declared]
    new = with_fields(sref.stmt, reads=mended)
    theirs.state.replace(sref, new, {sref.stmt: new})
