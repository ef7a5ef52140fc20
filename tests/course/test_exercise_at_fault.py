"""A right exercise that uses a wrong one waits for it; an exercise that is itself wrong fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from chapters.runner.course import Chapter, exercise
from chapters.runner.engine import Examiner
from chapters.runner.regions import map_regions
from tests.support.answers import write_answer

BYTES_WRONG = {"1.2": "return 1 / 0"}
TILE_WRONG = {"5.1": "return sch.get_loops(block)"}


@pytest.fixture
def answer(tmp_path):
    """Makes a chapter's reference in which every region of some exercises is replaced by one line."""

    def make(chapter: Chapter, replaced: dict[str, str]) -> Path:
        def replace(found: str, begin: str, body: list[str]) -> list[str]:
            indent = begin[: len(begin) - len(begin.lstrip())]
            return [indent + replaced[found]] if found in replaced else body

        text = map_regions(chapter.solution.read_text(encoding="utf-8"), replace)
        return write_answer(tmp_path, chapter, text)

    return make


@pytest.fixture
def last_outcome(examiner, answer):
    def check(exercise_id: str, replaced: dict[str, str]):
        chapter, wanted = exercise(exercise_id)
        return examiner.run_exercise(chapter, wanted, answer(chapter, replaced))[-1]

    return check


@pytest.mark.parametrize(
    ("exercise_id", "replaced", "waits"), [("1.3", BYTES_WRONG, "1.2"), ("5.2", TILE_WRONG, "5.1")]
)
def test_an_exercise_waits_for_what_it_uses(last_outcome, exercise_id, replaced, waits):
    assert last_outcome(waits, replaced).state == "failed"
    outcome = last_outcome(exercise_id, replaced)
    assert (outcome.state, outcome.reason) == ("waits", f"exercise {waits}"), outcome.failure


def test_an_exercise_that_is_wrong_itself_does_not_wait(last_outcome):
    assert last_outcome("1.3", {"1.3": "return {}"}).state == "failed"
    assert last_outcome("1.3", {"1.3": "return {}", **BYTES_WRONG}).state == "failed"


def test_nothing_waits_for_an_exercise_that_passes(last_outcome, monkeypatch):
    """There the learner would find no mistake, so the failure is reported."""
    monkeypatch.setattr(Examiner, "is_solved", lambda *_: True)
    assert last_outcome("1.3", BYTES_WRONG).state == "failed"


def test_pytest_says_that_it_waits(course, answer):
    chapter, _ = exercise("1.3")
    impl = str(answer(chapter, BYTES_WRONG))
    run = course.pytest("-k", "1_3", "--impl", impl, f"solutions/{chapter.slug}")
    assert run.returncode == 1 and "1 waits" in run.stdout and "failed" not in run.stdout
