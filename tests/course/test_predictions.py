"""The message about a wrong prediction gives neither the right number nor the direction, by which it could be found."""

from __future__ import annotations

import importlib
import inspect
import re

import numpy as np
import pytest

from chapters.checking import expect
from chapters.runner.catalogue import mistakes_of
from chapters.runner.course import chapters
from chapters.runner.engine import checks_of
from chapters.runner.failure import CheckFailed
from chapters.runner.loading import load
from tests.support.answers import mistaken

EXERCISES = [(c, e) for c in chapters() for e in c.exercises]
PREDICTED = [(c, e) for c, e in EXERCISES if e.kind == "predict" or e.id == "3.7"]
# 5.4's answer is a function: these two are refused before a number of theirs is compared
NO_NUMBER = {"bias_multiplied_in_place", "two_dimensions_only"}
NAMES = [(c, e, mistake.name) for c, e in PREDICTED for mistake in mistakes_of(c, e.id)]
WRONG = [(c, e, name) for c, e, name in NAMES if name not in NO_NUMBER]
MISTAKES = [pytest.param(c, e, name, id=f"{c.short}-{name}") for c, e, name in WRONG]


def _find_numbers(text: str) -> set[float]:
    return {float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w])", text)}


def test_neither_the_number_nor_the_direction_is_said():
    expect.predicted(7, 7, "seven")
    expect.predicted(np.float16("inf"), float("inf"), "infinite")
    for yours, said in ((9, "another"), (5.5, "another"), (None, "a number"), ("7", "a number")):
        with pytest.raises(CheckFailed) as failed:
            expect.predicted(yours, 7, "It is another number.")
        assert failed.value.failure.expected.startswith(said)
        assert failed.value.failure.yours == repr(yours)
        assert failed.value.failure.what == "It is another number."


@pytest.mark.parametrize(("chapter", "exercise", "name"), MISTAKES)
def test_no_failure_says_the_number(tmp_path, chapter, exercise, name, monkeypatch):
    counted = []
    ask = expect.Section.predicted

    def noted(section, yours, number, *arguments, **more):
        counted.append(number)
        ask(section, yours, number, *arguments, **more)

    monkeypatch.setattr(expect.Section, "predicted", noted)
    checks = importlib.import_module(f"chapters.{chapter.slug}.checks")
    answer = mistaken(tmp_path, chapter, name)
    with pytest.raises(CheckFailed) as failed:
        for check in checks_of(chapter):
            if check.exercise.id == exercise.id:
                getattr(checks, check.name)(answer)
    said = failed.value.failure
    texts = " ".join((said.what, said.expected, said.why)).replace(",", "")
    assert counted, "a prediction is compared by `predicted` of a Section"
    asked = inspect.getdoc(getattr(load(chapter.solution), exercise.name))
    assert not _find_numbers(texts) & {float(counted[-1])} - _find_numbers(asked), texts
    assert said.expected == "another number"
