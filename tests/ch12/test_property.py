"""CombineProducts on random programs: NumPy's numbers in float64, in two runs, and no more launches or constants.

The programs are the check's, drawn with another seed. `FUSION_DRAWS=1000 pytest tests/ch12` draws more.
"""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given, seed, settings

from chapters.ch12_combine_products.check_programs import programs
from chapters.ch12_combine_products.checks import costs_no_more
from chapters.checking.draws import SAME_EVERYWHERE
from chapters.checking.judge_programs import failure_on
from solutions.ch12_combine_products import combine_products

DRAWS = int(os.environ.get("FUSION_DRAWS", "40"))


def test_never_wrong():
    transform = combine_products.CombineProducts()
    fired = []

    @seed(1)
    @settings(SAME_EVERYWHERE, max_examples=DRAWS)
    @given(programs())
    def check(program):
        fired.append(not transform(program.mod).same_as(program.mod))
        path = Path(combine_products.__file__)
        costs = costs_no_more
        failure = failure_on(transform, program, "CombineProducts", path, costs=costs, read="")
        if failure:
            raise failure

    check()
    assert sum(fired) >= DRAWS // 20, "the draws are too odd to test anything"


def test_the_draws_cover_what_they_are_for():
    texts: list[str] = []

    @seed(1)
    @settings(SAME_EVERYWHERE, max_examples=100)
    @given(programs())
    def note(program):
        texts.append(program.mod.script())

    note()
    wanted = ("call_tir_inplace", "if choose", "helper", "float16", "bfloat16", "axes=[0, 2, 1]")
    for name in wanted:
        assert any(name in text for text in texts), f"no draw has {name}"
