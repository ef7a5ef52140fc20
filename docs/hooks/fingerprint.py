"""Whether anything a page's output may depend on has changed since the last look.

The files that learners edit are not looked at: no page runs them, and saving one must not rebuild the site.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

FOLDERS = ("chapters", "solutions", "tests", "docs")
SUFFIXES = (".py", ".hpp", ".json", ".yml")


def fingerprint(root: Path, *more: str) -> str:
    """A key made of TVM's version, the state of every source and data file, and `more`."""
    parts = [version("apache-tvm"), *more]
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and not _is_stub(root, path):
                stat = path.stat()
                parts.append(f"{path} {stat.st_mtime_ns} {stat.st_size}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _is_stub(root: Path, path: Path) -> bool:
    """Whether a solution of the same chapter and name stands behind the file at `path`."""
    here = path.relative_to(root).parts
    return here[0] == "chapters" and (root / "solutions" / Path(*here[1:])).exists()
