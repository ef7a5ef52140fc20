"""Files that take long to make, kept in .cache/ under the content that they were made from."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from chapters.child import ROOT

CACHE = ROOT / ".cache"
MOST = 1000  # files of one kind in a folder


def short_hash(*parts: str | bytes) -> str:
    """16 hexadecimal digits that stand for `parts`, in their order."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()[:16]


def kept_file(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`; `make` writes it first, into another path that it is given, unless it is there already.

    Several processes may ask for one file. Beyond MOST files of one kind, those used longest ago go.
    """
    if path.exists():
        with contextlib.suppress(FileNotFoundError):
            path.touch()
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_suffix(f".{os.getpid()}")  # another process may make the same file
    make(own)
    own.replace(path)
    for old in sorted(path.parent.glob(f"*{path.suffix}"), key=last_used)[:-MOST]:
        old.unlink(missing_ok=True)
    return path


def last_used(path: Path) -> float:
    """When `path` was made or used last, in seconds since the epoch; now, if another process has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
