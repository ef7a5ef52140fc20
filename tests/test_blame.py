"""An exercise that is right and uses one that is wrong waits for it; one that is wrong itself is told so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chapters.toolkit.course import ROOT, Chapter, exercise
from chapters.toolkit.stub import map_regions
from tests.harness.runner import Runner

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
        path = tmp_path / chapter.slug / chapter.file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return make


@pytest.fixture
def last_outcome(runner, answer):
    def check(exercise_id: str, replaced: dict[str, str]):
        chapter, wanted = exercise(exercise_id)
        return runner.run_exercise(chapter, wanted, answer(chapter, replaced))[-1]

    return check


@pytest.mark.parametrize(
    ("exercise_id", "replaced", "waits"), [("1.3", BYTES_WRONG, "1.2"), ("5.4", TILE_WRONG, "5.1")]
)
def test_an_exercise_waits_for_what_it_uses(last_outcome, exercise_id, replaced, waits):
    assert last_outcome(waits, replaced).state == "failed"
    outcome = last_outcome(exercise_id, replaced)
    assert (outcome.state, outcome.reason) == ("todo", f"exercise {waits}"), outcome.failure


def test_an_exercise_that_is_wrong_itself_does_not_wait(last_outcome):
    assert last_outcome("1.3", {"1.3": "return {}"}).state == "failed"
    assert last_outcome("1.3", {"1.3": "return {}", **BYTES_WRONG}).state == "failed"


def test_nothing_waits_for_an_exercise_that_passes(last_outcome, monkeypatch):
    """Then its learner has nothing to mend there: the failure stands."""
    monkeypatch.setattr(Runner, "_is_solved", lambda *_: True)
    assert last_outcome("1.3", BYTES_WRONG).state == "failed"


def test_pytest_says_that_it_waits(answer):
    chapter, _ = exercise("1.3")
    options = ["-p", "no:cacheprovider", "--impl", str(answer(chapter, BYTES_WRONG))]
    command = [sys.executable, "-m", "pytest", *options, "-k", "test_1_3_fills"]
    run = subprocess.run(
        [*command, str(chapter.solution_folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert run.returncode == 1 and "1 waits" in run.stdout and "failed" not in run.stdout
