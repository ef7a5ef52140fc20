"""What a learner has reached: a small file beside the course that `check` and `pytest chapters/` write.

`.progress.json` holds, for each exercise, the state its last check found, a digest of the file that
was checked, and how many hints were shown. A damaged file is set aside, never overwritten.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from chapters.toolkit.course import ROOT, Chapter
from chapters.toolkit.stub import untouched

PROGRESS = ROOT / ".progress.json"
KEPT = ROOT / ".kept"


def digest(path: Path) -> str:
    """A short fingerprint of a file's content; "" if there is no file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def keep_copy(path: Path) -> Path:
    """Copy the file at `path` into `.kept/` under a name with the time, and return the copy."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = KEPT / path.parent.name
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"{path.stem}-{stamp}{path.suffix}"
    count = 1
    while copy.exists():
        count += 1
        copy = folder / f"{path.stem}-{stamp}-{count}{path.suffix}"
    copy.write_bytes(path.read_bytes())
    return copy


def read() -> dict[str, dict]:
    """The record of every exercise by id; {} where nothing was checked yet."""
    if not PROGRESS.exists():
        return {}
    try:
        record = json.loads(PROGRESS.read_text(encoding="utf-8"))
        if not all(isinstance(entry, dict) for entry in record.values()):
            raise ValueError("not a record")
    except (ValueError, AttributeError):
        kept = keep_copy(PROGRESS)
        PROGRESS.unlink()
        print(f"{PROGRESS.name} could not be read; it is kept as {kept.relative_to(ROOT)}.")
        return {}
    return record


def update(exercise_id: str, **facts: object) -> None:
    """Set `facts` in the record of an exercise. The file is replaced whole, never half written."""
    record = read()
    record.setdefault(exercise_id, {}).update(facts)
    draft = PROGRESS.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(draft, PROGRESS)


def record_state(chapter: Chapter, exercise_id: str, state: str) -> None:
    """Note what the check of an exercise found, and on which text."""
    update(exercise_id, state=state, digest=digest(chapter.stub), when=time.strftime("%Y-%m-%d"))


def states(chapter: Chapter) -> dict[str, str]:
    """The state of each exercise of a chapter, without running anything.

    "todo": not begun; "passed" or "failed": what the last check of the file as it stands found;
    "changed": begun, and not checked since the last edit.
    """
    text = (
        chapter.stub.read_text(encoding="utf-8", errors="replace") if chapter.stub.exists() else ""
    )
    blank = untouched(chapter, text)
    record, now = read(), digest(chapter.stub)
    result = {}
    for exercise in chapter.exercises:
        entry = record.get(exercise.id, {})
        if exercise.id in blank:
            result[exercise.id] = "todo"
        elif entry.get("digest") == now and entry.get("state") in ("passed", "failed", "todo"):
            result[exercise.id] = entry["state"]
        else:
            result[exercise.id] = "changed"
    return result


def has_passed(chapter: Chapter) -> bool:
    """Whether every exercise of the learner's file, as it stands, has passed its checks."""
    return all(state == "passed" for state in states(chapter).values())
