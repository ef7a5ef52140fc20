"""What a learner has reached: a small file beside the course that `check` and `pytest chapters/` write.

`.progress.json` holds, for each exercise, the state its last check found, a digest of the text that
was checked, and how many hints were shown. A damaged file is set aside, never overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import time
from pathlib import Path

from chapters.toolkit.course import ROOT, Chapter, CourseError
from chapters.toolkit.stub import own_text, untouched

PROGRESS = ROOT / ".progress.json"
KEPT = ROOT / ".kept"


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


def keep_copy(path: Path) -> Path:
    """Copy the file at `path` into `.kept/` under a name with the time, and return the copy."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = KEPT / path.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    for count in itertools.count(1):
        number = f"-{count}" if count > 1 else ""
        copy = folder / f"{path.stem}-{stamp}{number}{path.suffix}"
        with contextlib.suppress(FileExistsError), copy.open("xb") as file:
            file.write(path.read_bytes())
            return copy


def read() -> dict[str, dict]:
    """The record of every exercise by id; {} where nothing was checked yet."""
    if not PROGRESS.exists():
        return {}
    try:
        record = json.loads(PROGRESS.read_text(encoding="utf-8"))
        if not all(_is_entry(entry) for entry in record.values()):
            raise ValueError("not a record")
    except (ValueError, AttributeError):
        kept = keep_copy(PROGRESS)
        PROGRESS.unlink()
        print(f"{PROGRESS.name} could not be read; it is kept as {kept.relative_to(ROOT)}.")
        return {}
    return record


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("hints", 0), int)
        and entry.get("hints", 0) >= 0
        and entry.get("state", "todo") in ("passed", "failed", "todo", "skipped")
    )


def update(exercise_id: str, **facts: object) -> None:
    """Set `facts` in the record of an exercise. The file is replaced whole, never half written."""
    record = read()
    record.setdefault(exercise_id, {}).update(facts)
    draft = PROGRESS.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(draft, PROGRESS)


def record_state(chapter: Chapter, exercise_id: str, state: str, checked: str) -> bool:
    """Note what the check of an exercise found on the text whose digest, taken before, is `checked`.

    Notes nothing and returns False if the text is another by now: nobody checked that one.
    """
    if digest(chapter, exercise_id) != checked:
        return False
    update(exercise_id, state=state, digest=checked, when=time.strftime("%Y-%m-%d"))
    return True


def states(chapter: Chapter) -> dict[str, str]:
    """The state of each exercise of a chapter, without running anything.

    "todo": not begun; "passed" or "failed": what the last check of the file as it stands found;
    "changed": begun, and not checked since the last edit.
    """
    text = (
        chapter.stub.read_text(encoding="utf-8", errors="replace") if chapter.stub.exists() else ""
    )
    blank = untouched(chapter, text)
    record = read()
    result = {}
    for exercise in chapter.exercises:
        entry = record.get(exercise.id, {})
        if exercise.id in blank:
            result[exercise.id] = "todo"
        elif entry.get("digest") == digest(chapter, exercise.id):
            result[exercise.id] = entry.get("state", "changed")
        else:
            result[exercise.id] = "changed"
    return result


def has_passed(chapter: Chapter) -> bool:
    """Whether every exercise of the learner's file, as it stands, has passed its checks."""
    return all(state == "passed" for state in states(chapter).values())
