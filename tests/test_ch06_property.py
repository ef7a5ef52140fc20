"""Random programs against `fuse_reduction_epilogue`: it computes the same, or it refuses and leaves all as it was.

The reference is the interpreter of tests/property, on integers that every dtype holds exactly; the fused program is
compiled and run with guard zones around its arrays. `FUSION_DRAWS=5000 pytest tests/test_ch06_property.py` draws more.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.s_tir import SBlock
from tvm.s_tir.analysis import get_sblock_access_region

from chapters.toolkit.ir.tensor_ir import nodes, with_fields
from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import (
    fuse_reduction_epilogue,
    refresh_regions,
)
from tests.property.guarded import WroteOutside, run_compiled
from tests.property.interpret import OutOfBounds, interpret
from tests.property.reductions import TABLE, draw, reschedule

DRAWS = int(os.environ.get("FUSION_DRAWS", "300"))
PER_TEST = 50


def _interpreted(func: tvm.tirx.PrimFunc, arguments: list) -> list[np.ndarray]:
    copies = [array.copy() for array in arguments]
    interpret(func, copies)
    return copies


def _same(got: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


def _drawn(seed: int):
    """The program `seed`, some primitives already applied to it, and the generator to go on with."""
    program, rng = draw(seed), random.Random(seed)
    sch = s_tir.Schedule(program.func)
    reschedule(sch, rng, rng.choice((0, 0, 2, 4)), ("mm", "bias", "other"))
    return program, sch, rng


def _fused(sch: s_tir.Schedule) -> bool:
    """Whether the primitive accepts; if it does not, it must say so in a sentence and leave everything as it was."""
    before, text, state = sch.mod, sch.mod.script(), sch.state
    try:
        fuse_reduction_epilogue(sch, "mm", "bias")
    except s_tir.ScheduleError as error:
        message = str(error)
        assert message.startswith("Block `") and "\n" not in message and message.endswith(".")
        assert sch.mod.same_as(before) and sch.mod.script() == text and sch.state.same_as(state)
        return False
    return True


def _runs_right(mod: tvm.IRModule, arguments: list, expected: list[np.ndarray]) -> bool:
    """Whether `mod`, compiled, gives `expected` and writes nowhere else."""
    try:
        return _same(run_compiled(mod, arguments), expected)
    except WroteOutside:
        return False


def _check_regions(mod: tvm.IRModule, name: str) -> None:
    """The block declares every buffer that it reads, and what it writes."""
    sch = s_tir.Schedule(mod)
    block = sch.get(sch.get_sblock(name))
    buffers = {v: v for v in nodes(block, tvm.ir.Var) if tvm.tirx.is_buffer_var(v)}
    reads, writes, _ = get_sblock_access_region(block, buffers)
    declared = {region.source for region in block.reads}
    written = {region.source for region in block.writes}
    assert {r.source for r in reads} - written <= declared
    assert len(declared) == len(block.reads), "one region a buffer"
    assert {w.source for w in writes} == written


@pytest.mark.parametrize("start", range(0, DRAWS, PER_TEST))
def test_what_is_fused_computes_the_same(start):
    fused = 0
    for seed in range(start, start + PER_TEST):
        program, sch, rng = _drawn(seed)
        given = sch.mod
        if not _fused(sch):
            continue
        fused += 1
        expected = _interpreted(given["main"], program.arguments)
        assert _same(_interpreted(sch.mod["main"], program.arguments), expected), (seed, given)
        _check_regions(sch.mod, "mm")
        checked = s_tir.Schedule(given, debug_mask="all")
        fuse_reduction_epilogue(checked, "mm", "bias")
        assert tvm_ffi.structural_equal(checked.mod, sch.mod)
        _go_on(sch, rng)
        if not _runs_right(sch.mod, program.arguments, expected):
            # this release compiles a few indices wrongly, such as `(3 - i) // 2` beside `(3 - i) % 2`
            assert not _runs_right(given, program.arguments, expected), (seed, given)
    assert fused >= PER_TEST // 5, "the draws are too odd to test anything"


def _go_on(sch: s_tir.Schedule, rng: random.Random) -> None:
    """Schedule the fused block as one would: loops, and then the decomposition and its regions."""
    reschedule(sch, rng, rng.choice((0, 2, 4)), ("mm", "other"))
    loop = rng.choice(sch.get_loops("mm"))
    if rng.random() < 0.5 or len(sch.get_child_blocks(loop)) > 1:
        return  # decompose_reduction moves the init over other blocks of the loop without looking what it reads
    try:
        init = sch.decompose_reduction("mm", loop)
    except s_tir.ScheduleError:
        return
    for block in (init, "mm_update"):
        refresh_regions(sch, block)


def test_equals_the_built_in_where_that_is_right():
    """The whole module, once the built-in's has been mended where ours is better."""
    right = 0
    for seed in range(DRAWS):
        program, sch, rng = _drawn(seed)
        theirs, given = s_tir.Schedule(sch.mod), sch.mod
        if 1 in program.sizes or not _fused(sch):
            continue  # on an axis of one point, a wrong index is right by chance
        try:
            theirs.fuse_reduction_epilogue("mm", "bias")
        except (s_tir.ScheduleError, tvm.error.InternalError, ValueError):
            continue
        inputs = [_others(program.arguments, rng) for _ in range(4)]
        if not all(_computes(theirs.mod, _interpreted(given["main"], a), a) for a in inputs):
            continue
        right += 1
        _mend(theirs, given, sch.get(sch.get_sblock("mm")).reads)
        tvm.ir.assert_structural_equal(sch.mod, theirs.mod)
    assert right >= DRAWS // 20, "the draws are too odd to compare anything"


def _others(arguments: list[np.ndarray], rng: random.Random) -> list[np.ndarray]:
    """Other arguments, without a zero that would hide a mistake; the table of indices stays a permutation."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    others = [numbers.integers(1, 10, a.shape).astype(a.dtype) for a in arguments]
    others[TABLE] = numbers.permuted(arguments[TABLE])
    return others


def _computes(mod: tvm.IRModule, expected: list[np.ndarray], arguments: list) -> bool:
    try:
        return _same(_interpreted(mod["main"], arguments), expected)
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
