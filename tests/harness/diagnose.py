"""Misconception matching: does a failing answer behave exactly like a catalogued wrong one?

A checks module may define, for an exercise, `observe_2_1(impl)`: a list of at least two functions
without arguments, each returning a text that describes what `impl` did on one input (its result,
its side effects). An answer that gives, on all of them, the texts that a catalogued wrong answer
gives, and not those of the reference, gets that mistake's explanation. One that gives here what one
mistake gives, there what another gives, and elsewhere what is right, gets both.
"""

from __future__ import annotations

import re
import time
from itertools import combinations
from pathlib import Path
from types import ModuleType

from chapters.toolkit.course import Chapter
from tests.harness.loading import Answer, last_line, load

PAIR_SECONDS = 5  # after so long no two mistakes are looked for: every probe of every wrong answer takes its time


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
    """`what`, `why`, `read` and `file` of the one wrong answer, or the two, that `impl` behaves like; {} if none."""
    if not hasattr(checks, "observe_" + exercise_id.replace(".", "_")):
        return {}
    until = time.monotonic() + PAIR_SECONDS
    mine = [_seen(probe) for probe in _probes(checks, exercise_id, impl)]
    if _behaves(checks, exercise_id, load(chapter.solution), mine):
        return {}
    wrongs = {}
    for path in catalogue(chapter):
        wrong = load(path)
        if exercise_id != wrong.EXERCISE:
            continue
        if _behaves(checks, exercise_id, wrong, mine):
            return {
                "what": wrong.WHAT,
                "why": wrong.WHY,
                "read": getattr(wrong, "READ", ""),
                "file": path.name,
            }
        wrongs[path] = wrong
    return _two_at_once(checks, chapter, exercise_id, mine, wrongs, until)


def _two_at_once(
    checks: ModuleType,
    chapter: Chapter,
    exercise_id: str,
    mine: list[str],
    wrongs: dict[Path, Answer],
    until: float,
) -> dict[str, str]:
    """The only two of `wrongs` that together explain the texts `mine`; {} if there are none, or several, or no time.

    On each input the answer does what is right or what one of the two does, and each of the two shows wherever it is
    wrong. Less would be a guess: an answer that fails everywhere contains many a mistake.
    """
    right = [_seen(probe) for probe in _probes(checks, exercise_id, load(chapter.solution))]
    off = {n for n, (text, wanted) in enumerate(zip(mine, right, strict=True)) if text != wanted}
    if len(off) < 2:
        return {}
    shown: dict[Path, set[int]] = {}
    for path, wrong in wrongs.items():
        if time.monotonic() > until:
            return {}
        shown[path] = _shows(_probes(checks, exercise_id, wrong), mine, right)
    pairs = [pair for pair in combinations(shown, 2) if shown[pair[0]] | shown[pair[1]] == off]
    if len(pairs) != 1:
        return {}
    first, second = (wrongs[path] for path in pairs[0])
    return {
        "what": f"two mistakes at once: {first.WHAT}; and {second.WHAT}",
        "why": f"{first.WHY} {second.WHY}",
        "read": getattr(first, "READ", ""),
        "file": " and ".join(path.name for path in pairs[0]),
    }


def _shows(probes: list, mine: list[str], right: list[str]) -> set[int]:
    """Where a wrong answer differs from the right one, if it does there what `mine` says; else nothing."""
    shown = set()
    for n, probe in enumerate(probes):
        text = _seen(probe)
        if text == right[n]:
            continue
        if text != mine[n]:
            return set()
        shown.add(n)
    return shown
