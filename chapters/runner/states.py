"""The state of each exercise: what its last check found on the learner's file as it is now."""

from __future__ import annotations

import contextlib
import hashlib
import time

from chapters.runner import progress
from chapters.runner.course import Chapter, CourseError
from chapters.runner.learner_file import not_begun
from chapters.runner.regions import own_text


def digest(chapter: Chapter, exercise_id: str) -> str:
    """A fingerprint of what the check of an exercise looks at in the learner's file; "" if there is none.

    Text in the regions of other exercises does not count, so that one can be solved after the other.
    """
    if not chapter.stub.exists():
        return ""
    text = chapter.stub.read_bytes().decode("utf-8", "surrogateescape")
    with contextlib.suppress(CourseError):  # markers that do not pair: then the whole text counts
        text = own_text(text, exercise_id)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def record_state(chapter: Chapter, exercise_id: str, state: str, checked: str) -> bool:
    """Note what the check of an exercise found on the text whose digest, taken before, is `checked`.

    Notes nothing and returns False if the text is another by now: nobody checked that one.
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
    """Whether every exercise of the learner's file, as it stands, has passed its checks."""
    return all(state == "passed" for state in states(chapter).values())
