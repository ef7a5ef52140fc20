"""The state of each exercise: what its last check found on the learner's file as it is now."""

from __future__ import annotations

import contextlib
import hashlib
import time

from chapters.runner import progress
from chapters.runner.course import Chapter, CourseError, Exercise, chapters
from chapters.runner.engine import FINE
from chapters.runner.learner_file import not_begun
from chapters.runner.regions import own_text


def digest(chapter: Chapter, exercise_id: str) -> str:
    """A fingerprint of the part of the learner's file on which an exercise depends; "" if there is no file.

    Text in the regions of other exercises does not count, so that exercises can be solved one after the other.
    """
    if not chapter.stub.exists():
        return ""
    text = chapter.stub.read_bytes().decode("utf-8", "surrogateescape")
    with contextlib.suppress(CourseError):  # markers that do not pair: then the whole text counts
        text = own_text(text, exercise_id)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def record_state(chapter: Chapter, exercise_id: str, state: str, checked: str) -> bool:
    """Note the state that the check of an exercise found. checked: the digest of the text before the check.

    Notes nothing and returns False if the text has changed since: the check did not see the new one.
    """
    if digest(chapter, exercise_id) != checked:
        return False
    progress.update(exercise_id, state=state, digest=checked, when=time.strftime("%Y-%m-%d"))
    return True


def states(chapter: Chapter) -> dict[str, str]:
    """The state of each exercise of a chapter, without running anything.

    "todo": not begun; "passed", "failed" or "skipped": what the last check found on the file as it is now; "changed":
    begun, and not checked since the last edit.
    """
    blank, record = not_begun(chapter, chapter.stub), progress.read()
    result = {}
    for exercise in chapter.exercises:
        entry = record.get(exercise.id, {})
        if exercise.id in blank or not chapter.stub.exists():
            result[exercise.id] = "todo"
        elif entry.get("digest") == digest(chapter, exercise.id):
            result[exercise.id] = entry.get("state", "changed")
        else:
            result[exercise.id] = "changed"
    return result


def has_passed(chapter: Chapter) -> bool:
    """Whether every exercise of the learner's file, as it is now, has passed its checks."""
    record = progress.read()
    # most are asked of chapters that were never checked: `states` would make the stub of each to compare with
    once = all(record.get(e.id, {}).get("state") == "passed" for e in chapter.exercises)
    return once and all(state == "passed" for state in states(chapter).values())


def upcoming(first: int = 0) -> tuple[Chapter, Exercise] | None:
    """The first exercise that is left to solve: neither passed nor, where it cannot run, skipped. None if none is.

    first: the number of the chapter to begin with.
    """
    for chapter in chapters():
        if chapter.number < first:
            continue
        now = states(chapter)
        for exercise in chapter.exercises:
            if now[exercise.id] not in FINE:
                return chapter, exercise
    return None
