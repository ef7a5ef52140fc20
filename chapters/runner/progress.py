"""The record of a learner's progress, `.progress.json`, and the copies that are kept of their files, in `.kept/`.

The record holds for each exercise the state that its last check found, a digest of the text that was checked and the
number of hints shown; and for each chapter a digest of the stub that the learner's file was made from. A damaged record
is set aside, never overwritten.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from pathlib import Path

from chapters.runner.course import ROOT

PROGRESS = ROOT / ".progress.json"
KEPT = ROOT / ".kept"


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
    """The whole record, by exercise id or chapter; {} if nothing was recorded yet."""
    if not PROGRESS.exists():
        return {}
    try:
        record = json.loads(PROGRESS.read_text(encoding="utf-8"))
        if not all(_is_entry(entry) for entry in record.values()):
            raise ValueError("not a record")
    except (ValueError, AttributeError, RecursionError):
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


def update(key: str, **facts: object) -> None:
    """Set `facts` in the entry of an exercise or a chapter. The file is replaced whole, never half written."""
    record = read()
    record.setdefault(key, {}).update(facts)
    draft = PROGRESS.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(draft, PROGRESS)
