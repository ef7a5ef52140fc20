"""The programs on which chapter 12's check judges CombineProducts have what could go wrong in them."""

from __future__ import annotations

from hypothesis import given, seed, settings

from chapters.ch12_combine_products.check_programs import programs
from chapters.checking.draws import SAME_EVERYWHERE


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
