"""Files that take long to make, kept in the user's cache under the content that they were made from.

A file is used again only if its bytes are those that were written. Runs about the reference and runs about the
learner's code keep theirs apart.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import platformdirs

from chapters.code_owner import LEARNER, REFERENCE, is_about_learner

MOST = 1000  # files of one kind in a folder


def short_hash(*parts: str | bytes) -> str:
    """16 hexadecimal digits that stand for `parts`, in their order."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()[:16]


def json_text(value: object, indent: str = "") -> str:
    """`value` as JSON for a tracked file: each object and list that holds no other is on a line of its own."""
    pairs = isinstance(value, dict)
    inside = value.values() if pairs else value if isinstance(value, list) else ()
    if not any(isinstance(one, (dict, list)) and one for one in inside):
        return json.dumps(value, ensure_ascii=False)
    names = (
        (f"{json.dumps(name, ensure_ascii=False)}: " for name in value)
        if pairs
        else [""] * len(value)
    )
    lines = [
        f"{indent} {name}{json_text(one, indent + ' ')}"
        for name, one in zip(names, inside, strict=True)
    ]
    opened, closed = "{}" if pairs else "[]"
    return "\n".join([opened, ",\n".join(lines), f"{indent}{closed}"])


def cache_folder() -> Path:
    """The folder for what can be made or fetched again: the environment variable FUSION_CACHE, or the system's own.

    It need not exist yet.
    """
    chosen = os.environ.get("FUSION_CACHE")
    if chosen:
        return Path(os.path.expanduser(chosen))
    return platformdirs.user_cache_path("fusion-by-hand", appauthor=False)


@functools.cache
def cache_subfolder(kind: str) -> Path:
    """The folder for files of one kind, made if it is missing; a temporary one where the cache cannot be written to."""
    folder = cache_folder() / (LEARNER if is_about_learner() else REFERENCE) / kind
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix=f"fusion-{kind}-"))


def keep_file(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`; `make` writes it first, into another path that it is given, unless it is there already and whole.

    Several processes may ask for one file. Beyond MOST files of one kind, those used longest ago go.
    """
    check = path.with_name(f"{path.name}.sha256")
    with contextlib.suppress(OSError):
        if check.read_text("ascii") == hash_of(path):
            path.touch()
            return path
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_suffix(f".{os.getpid()}")  # another process may make the same file
    try:
        make(own)
        digest = hash_of(own)
        own.replace(path)
    finally:
        own.unlink(missing_ok=True)
    own.write_text(digest, "ascii")
    own.replace(check)
    for old in sorted(path.parent.glob(f"*{path.suffix}"), key=last_used)[:-MOST]:
        old.unlink(missing_ok=True)
        old.with_name(f"{old.name}.sha256").unlink(missing_ok=True)
    return path


def hash_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def last_used(path: Path) -> float:
    """When `path` was made or used last, in seconds since the epoch; now, if another process has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()
