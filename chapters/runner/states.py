"""The state of each exercise: what its last check found on the learner's code as it is now."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from chapters.runner import progress
from chapters.runner.course import PATHS, ROOT, Chapter, Exercise, chapters
from chapters.runner.engine import FINE, Outcome
from chapters.runner.learner_file import find_not_begun
from chapters.runner.regions import file_digest, file_fingerprint, short_digest


def checks_digest(chapter: Chapter) -> str:
    """A fingerprint of the checks of a chapter, as they are now."""
    path = chapter.checks
    stat = path.stat()
    return _digest_checks(path, stat.st_mtime_ns, stat.st_size)


@cache
def _digest_checks(path: Path, _changed: int, _size: int) -> str:
    return short_digest(path.read_bytes().replace(b"\r\n", b"\n"))


def record_state(
    chapter: Chapter, exercise_id: str, state: str, loaded: str, outcomes: Iterable[Outcome] = ()
) -> bool:
    """Note the state of an exercise, with digests of what its checks loaded.

    loaded: the `file_fingerprint` when the check began. outcomes: of the checks that ran. Notes nothing and returns
    False if one of them loaded another text of the learner's file, or another file of theirs has changed meanwhile.
    """
    now = file_fingerprint(chapter.stub, exercise_id)
    files: dict[str, str] = {}
    for outcome in outcomes:
        for name, key in outcome.files.items():
            if not key or files.setdefault(name, key) != key:
                return False
    if loaded != now or any(outcome.loaded != now for outcome in outcomes):
        return False
    facts = {"digest": now, "checks": checks_digest(chapter), "files": files}
    progress.update(exercise_id, state=state, when=time.strftime("%Y-%m-%d"), **facts)
    return True


def states(chapter: Chapter) -> dict[str, str]:
    """The state of each exercise of a chapter, without running anything.

    "todo": not begun; "passed", "failed" or "skipped": what the last check found on the code as it is now; "changed":
    begun, and not checked since the last edit of the file or of another file that it imports; "outdated": checked, and
    the checks have changed since.
    """
    blank, record = find_not_begun(chapter, chapter.stub), progress.read()
    result = {}
    for exercise in chapter.exercises:
        entry = record.get(exercise.id, {})
        if exercise.id in blank or not chapter.stub.exists():
            result[exercise.id] = "todo"
        elif not _is_unchanged(chapter, exercise.id, entry):
            result[exercise.id] = "changed"
        elif entry.get("checks") != checks_digest(chapter):
            result[exercise.id] = "outdated"
        else:
            result[exercise.id] = entry.get("state", "changed")
    return result


def _is_unchanged(chapter: Chapter, exercise_id: str, entry: dict) -> bool:
    """Whether an exercise, and the other files of the learner's that its last check loaded, are as they were then."""
    own = entry.get("digest") == file_fingerprint(chapter.stub, exercise_id)
    files = entry.get("files", {}).items()
    return own and all(file_digest(ROOT / name) == key for name, key in files)


def passed_exercises(chapter: Chapter) -> list[str]:
    """The exercises of the learner's file that, as it is now, have passed their checks."""
    record = progress.read()
    # most are asked of chapters that were never checked: `states` would make the stub of each to compare with
    if not any(record.get(e.id, {}).get("state") == "passed" for e in chapter.exercises):
        return []
    return [key for key, state in states(chapter).items() if state == "passed"]


def chosen_path() -> str:
    """The path of the course that the learner has chosen: one of PATHS, "all" until then."""
    path = progress.read().get("path", {}).get("chosen")
    return path if path in PATHS else PATHS[-1]


def choose_path(path: str) -> None:
    """Record which of PATHS the learner follows."""
    progress.update("path", chosen=path)


def find_next_exercise(first: int = 0) -> tuple[Chapter, Exercise] | None:
    """The first exercise of the chosen path that is left to solve; None if none is.

    One that passed is not, nor one that was skipped because it cannot run here. first: the number of the chapter to
    begin with.
    """
    path = chosen_path()
    for chapter in chapters():
        if chapter.number < first:
            continue
        now = states(chapter)
        for exercise in chapter.exercises_on(path):
            if now[exercise.id] not in FINE:
                return chapter, exercise
    return None
