"""An adversary for `fuse_epilogue`: random programs, random schedules before and after, and no wrong result.

Each draw runs twice: unfused in chapters/checking/interpret.py, which shares nothing with TVM's code generator, and
fused, rescheduled and compiled, with guard zones around its arrays. All numbers are integers that every dtype holds
exactly, but for an exp in float64. `FUSION_DRAWS=5000 pytest tests/ch07/test_property.py` draws more,
`FUSION_FIRST_DRAW=100000` others.
"""

from __future__ import annotations

import collections
import contextlib
import os
from functools import partial

import numpy as np
import pytest
import tvm
from hypothesis import strategies as st
from tvm import s_tir
from tvm.tirx import IntImm, IterVar

from chapters.checking.draws import CHOICES
from chapters.checking.interpret import interpret
from chapters.kit.cases.guard_zones import QUICK, run_compiled
from chapters.kit.ir.row_index import is_one
from chapters.kit.ir.tensor_ir import mentions
from solutions.ch07_when_fusion_is_sound.soundness import fuse_epilogue
from tests.support import random_reductions
from tests.support.kernels import try_draws
from tests.support.random_reductions import Draw, equal

_REALIZE = tvm.get_global_func("s_tir.schedule.GetSBlockRealize")
FIRST = int(os.environ.get("FUSION_FIRST_DRAW", "0")) // random_reductions.PER_TEST
PARTS = range(
    FIRST, FIRST - (-int(os.environ.get("FUSION_DRAWS", "300")) // random_reductions.PER_TEST)
)
BLOCKS = ("mm", "bias", "other")


@st.composite
def draws(draw) -> Draw:
    choices = random_reductions.Choices(draw(CHOICES))
    return Draw(
        program=random_reductions.program(choices, random_reductions.ANY_EPILOGUE),
        before=random_reductions.moves(choices, BLOCKS, choices.one((0, 0, 2, 4))),
        exact=choices.chance(20),
        after=random_reductions.moves(choices, BLOCKS, choices.one((0, 2, 4, 6))),
        decompose=choices.one(range(4)) if choices.chance(30) else None,
    )


def _interpreted(func, arguments: list) -> list[np.ndarray] | None:
    """What the unfused program computes; None if it overflows or reads memory that it never wrote."""
    results = []
    for poison in (77777, -1234):
        copies = [array.copy() for array in arguments]
        try:
            interpret(func, copies, poison)
        except OverflowError:
            return None
        results.append(copies)
    small = all(np.abs(a.astype("float64")).max(initial=0) < 2**23 for a in results[0])
    return results[0] if small and equal(*results) else None


class _Careful:
    """A schedule that keeps away from three mistakes of this release, which are not the fusion's.

    `reverse_compute_at` moves a block past one that reads its result. A buffer that lives inside a vectorized loop gets
    one element for all lanes. Once a loop of symbolic extent is split twice, the size of a buffer inside overflows,
    and nothing compiles. docs/upstream shows the first two, and tests/ch07/test_soundness.py the third.
    """

    def __init__(self, sch: s_tir.Schedule):
        self._sch, self._symbolic_split = sch, False

    def __getattr__(self, name: str):
        return getattr(self._sch, name)

    def split(self, loop, factors) -> None:
        if self._symbolic_split:
            raise s_tir.ScheduleError("a loop of symbolic extent was split before")
        self._symbolic_split = not isinstance(self._sch.get(loop).extent, IntImm)
        self._sch.split(loop, factors)

    def reverse_compute_at(self, block, loop) -> None:
        if self._sch.get_consumers(block):
            raise s_tir.ScheduleError("others read its result")
        self._sch.reverse_compute_at(block, loop)

    def vectorize(self, loop) -> None:
        around = [self._sch.get(other) for other in self._sch.get_loops("mm")]
        at = next((i for i, o in enumerate(around) if o.same_as(self._sch.get(loop))), 0)
        realize = _REALIZE(self._sch, self._sch.get_sblock("mm"))
        axes = zip(realize.block.iter_vars, realize.iter_values, strict=True)
        summed = [value for axis, value in axes if axis.iter_type == IterVar.CommReduce]
        if not any(mentions(summed, o.loop_var) and not is_one(o.extent) for o in around[:at]):
            raise s_tir.ScheduleError("a sum would live in the lanes of one loop")
        self._sch.vectorize(loop)


def _decompose(sch: s_tir.Schedule, at: int) -> None:
    """Take the init out of the reduction, unless a loop around it only repeats it.

    `compute_at` leaves such a loop; in this release the init then runs once and the steps as often as before.
    """
    loops = sch.get_loops("mm")
    realize = _REALIZE(sch, sch.get_sblock("mm"))
    wide = [sch.get(loop) for loop in loops if not is_one(sch.get(loop).extent)]
    if loops and all(mentions(realize.iter_values, loop.loop_var) for loop in wide):
        with contextlib.suppress(s_tir.ScheduleError):
            sch.decompose_reduction("mm", loops[at % len(loops)])


def way_taken(draw: Draw) -> str:
    """Schedule, fuse, schedule, run. Returns the way, "" for a refusal; AssertionError for a wrong result."""
    sch, arguments = draw.schedule(), draw.program.arguments
    given = sch.mod
    way = random_reductions.try_fusing(sch, partial(fuse_epilogue, reassociate=not draw.exact))
    if not way:
        return ""
    # with debug_mask="all" the next primitive compares each block's flags with newly derived ones
    checked = s_tir.Schedule(given, debug_mask="all")
    fuse_epilogue(checked, "mm", "bias", reassociate=not draw.exact)
    checked.add_unit_loop(checked.get_sblock("mm"))
    expected = _interpreted(given["main"], arguments)
    if expected is None:
        return way
    random_reductions.reschedule(_Careful(sch), draw.after)
    if draw.decompose is not None:
        _decompose(sch, draw.decompose)
    found = run_compiled(sch.mod, arguments, QUICK)
    assert equal(found, expected), f"{way}:\n{sch.mod.script()}"
    return way


@pytest.mark.parametrize("part", PARTS)
def test_never_wrong(part):
    ways = collections.Counter()

    def check(draw: Draw) -> None:
        ways[way_taken(draw)] += 1

    try_draws(check, draws(), number=random_reductions.PER_TEST, part=part)
    assert sum(ways.values()) - ways[""] >= random_reductions.PER_TEST // 4, (
        f"too few draws fuse: {ways}"
    )
    assert all(ways[way] for way in ("init", "scaled", "last step")), ways
