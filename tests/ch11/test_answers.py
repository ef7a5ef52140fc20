"""What `chat --without` leaves out; tests/kit/test_chat_model.py runs a model without it, and explains it."""

from __future__ import annotations

import pytest

from chapters.ch11_a_real_model import bench_answers
from chapters.ch11_a_real_model.passes import MULTIPLY, PASSES_OF, passes_without, phases
from chapters.kit.cases.guard_zones import QUICK_HERE


def names(**facts) -> list[str]:
    found = phases(QUICK_HERE, **facts)
    return [str(one.info.name) for passes in found.values() for one in passes]


@pytest.mark.parametrize("exercise", PASSES_OF)
def test_the_passes_of_an_exercise_are_left_out(exercise):
    left = [name for name in names() if name not in PASSES_OF[exercise]]
    assert names(without=exercise) == left and len(left) < len(names())


def test_a_chapter_stands_for_its_exercises():
    assert passes_without("3.2") == passes_without("3") and passes_without(MULTIPLY) == ()


@pytest.mark.parametrize("exercise", ["9.2", "10.1", "11.1", "2.1", "quick"])
def test_what_cannot_be_left_out_is_refused(exercise):
    with pytest.raises(
        ValueError, match=r"takes one of 3, 4, 6, 7, 9\.1, 9\.3, 9\.4, 11\.3, 11\.4"
    ):
        passes_without(exercise)


def test_a_table_of_what_answers_are_worth():
    seconds = {bench_answers.ALL: 0.002, "11.3": 0.06, MULTIPLY: 0.5}
    case = {"seconds": seconds, "context": 100, "threads": 2}
    table = str(bench_answers.make_table({"cases": [case]}))
    assert "500" in table and "FuseDequantizeTake" in table
