"""A prediction that is wrong is told in which direction, and never the number: that one is the answer."""

from __future__ import annotations

import importlib
import inspect
import re

import numpy as np
import pytest

from chapters.toolkit.course import chapters
from tests.harness import expect
from tests.harness.diagnose import catalogue
from tests.harness.failure import CheckFailed
from tests.harness.loading import load
from tests.harness.runner import checks_of

PREDICTED = [
    (c, e) for c in chapters() for e in c.exercises if e.kind == "predict" or e.id == "3.7"
]
WRONG = [
    pytest.param(c, e, path, id=f"{c.short}-{path.stem}")
    for c, e in PREDICTED
    for path in catalogue(c)
    if f'EXERCISE = "{e.id}"' in path.read_text(encoding="utf-8")
]


def _numbers(text: str) -> set[float]:
    return {float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w])", text)}


def test_the_direction_is_said_and_the_number_is_not():
    expect.predicted(7, 7, "seven")
    expect.predicted(np.float16("inf"), float("inf"), "infinite")
    for yours, said in ((9, "smaller"), (5.5, "larger"), (None, "a number"), ("7", "a number")):
        with pytest.raises(CheckFailed) as failed:
            expect.predicted(yours, 7, "It is another number.")
        assert said in failed.value.failure.expected
        assert failed.value.failure.yours == repr(yours)
        assert failed.value.failure.what == "It is another number."


@pytest.mark.parametrize(("chapter", "exercise", "path"), WRONG)
def test_no_failure_says_the_number(chapter, exercise, path, monkeypatch):
    counted = []
    ask = expect.predicted

    def noted(yours, number, *arguments, **more):
        counted.append(number)
        ask(yours, number, *arguments, **more)

    monkeypatch.setattr(expect, "predicted", noted)
    checks = importlib.import_module(f"tests.checks.{chapter.short}")
    answer = load(path)
    with pytest.raises(CheckFailed) as failed:
        for check in checks_of(chapter):
            if check.exercise.id == exercise.id:
                getattr(checks, check.name)(answer)
    said = failed.value.failure
    texts = " ".join((said.what, said.expected, said.why)).replace(",", "")
    assert counted, "a prediction is compared by expect.predicted"
    asked = inspect.getdoc(getattr(load(chapter.solution), exercise.name))
    assert not _numbers(texts) & {float(counted[-1])} - _numbers(asked), texts
    assert "larger" in said.expected or "smaller" in said.expected
