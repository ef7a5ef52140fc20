"""What a failure is put down to: an exercise that the answer uses, which it waits for, or a known mistake.

A known mistake is named if it explains everything that an answer does; of two at once, none is.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from chapters.ch02_attach_metadata import checks as ch02
from chapters.runner.course import Chapter, chapter, exercise
from chapters.runner.engine import Examiner
from chapters.runner.known_mistakes import Diagnoser
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


# --- known mistakes -------------------------------------------------------------------------------

SCORES = 8 * 12 * 64 * 4  # bytes of the attention scores, which are not the largest storage
WEIGHT = 128 * 2 * 352 * 4


def _diagnose(largest: int, at_16: int, symbolic: int) -> dict[str, str]:
    said = {"largest": largest, "largest_at_batch_16": at_16, "symbolic": symbolic}
    answer = SimpleNamespace(predicted_storage=lambda: said, _text=str(said))
    return Diagnoser().diagnose(ch02, chapter(2), "2.4", answer)


def test_a_mistake_is_named():
    assert _diagnose(SCORES, 2 * SCORES, 1)["name"] == "largest_is_an_activation"
    assert _diagnose(WEIGHT, WEIGHT, 0)["name"] == "everything_is_bounded"


@pytest.mark.parametrize(
    "said",
    [
        pytest.param((WEIGHT, WEIGHT, 1), id="nothing is wrong"),
        pytest.param((SCORES, 2 * SCORES, 0), id="two known mistakes"),
        pytest.param((SCORES, WEIGHT, 1), id="the mistake shows in one of its two places"),
    ],
)
def test_what_is_not_explained_is_not_named(said):
    assert _diagnose(*said) == {}
