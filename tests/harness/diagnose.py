"""Misconception matching: does a failing answer behave exactly like a catalogued wrong one?

A checks module may define, for an exercise, `observe_2_1(impl)`: a list of at least two functions
without arguments, each returning a text that describes what `impl` did on one input (its result,
its side effects). An answer that gives, on all of them, the texts that a catalogued wrong answer
gives, and not those of the reference, gets that mistake's explanation.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

from chapters.toolkit.course import Chapter
from tests.harness.loading import Answer, last_line, load


def _probes(checks: ModuleType, exercise_id: str, impl: Answer) -> list:
    probes = getattr(checks, "observe_" + exercise_id.replace(".", "_"))(impl)
    if len(probes) < 2:
        raise ValueError(
            f"observe_{exercise_id} has fewer than two inputs: a match would be chance"
        )
    return probes


def _seen(probe) -> str:
    try:
        return str(probe())
    except BaseException as error:  # an answer may also call sys.exit
        return re.sub(r"0x[0-9a-f]+", "0x…", "raises " + last_line(error))


def _behaves(checks: ModuleType, exercise_id: str, impl: Answer, mine: list[str]) -> bool:
    """Whether `impl` gives the texts `mine`; no input after the first that differs is tried, since it may take long."""
    probes = _probes(checks, exercise_id, impl)
    return all(_seen(probe) == text for probe, text in zip(probes, mine, strict=True))


def catalogue(chapter: Chapter, folder: str = "wrong") -> list[Path]:
    """The files of tests/wrong/chNN or tests/right/chNN."""
    return sorted((chapter.root / "tests" / folder / chapter.short).glob("[!_]*.py"))


def diagnose(
    checks: ModuleType, chapter: Chapter, exercise_id: str, impl: Answer
) -> dict[str, str]:
    """`what`, `why`, `read` and `file` of the one wrong answer that behaves like `impl`; {} if none."""
    if not hasattr(checks, "observe_" + exercise_id.replace(".", "_")):
        return {}
    mine = [_seen(probe) for probe in _probes(checks, exercise_id, impl)]
    if _behaves(checks, exercise_id, load(chapter.solution), mine):
        return {}
    for path in catalogue(chapter):
        wrong = load(path)
        if exercise_id == wrong.EXERCISE and _behaves(checks, exercise_id, wrong, mine):
            return {
                "what": wrong.WHAT,
                "why": wrong.WHY,
                "read": getattr(wrong, "READ", ""),
                "file": path.name,
            }
    return {}
