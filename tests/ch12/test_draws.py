"""The programs on which chapter 12's check judges CombineProducts have what could go wrong in them."""

from __future__ import annotations

from chapters.ch12_combine_products.check_programs import programs
from tests.support.kernels import try_draws


def test_the_draws_cover_what_they_are_for():
    texts: list[str] = []

    try_draws(lambda program: texts.append(program.mod.script()), programs(), number=100, part=1)
    wanted = ("call_tir_inplace", "if choose", "helper", "float16", "bfloat16", "axes=[0, 2, 1]")
    for name in wanted:
        assert any(name in text for text in texts), f"no draw has {name}"
