"""Copies of the learner's files, kept with the progress outside of the checkout.

One is made whenever a file with answers has changed since the newest copy and the course looks at it: at each command
and each check, and before the course writes to the file. So an answer that `git checkout`, `git clean` or an
editor has removed can be put back.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from pathlib import Path

from chapters.runner.course import Chapter
from chapters.runner.progress import data_folder


def copies_of(chapter: Chapter) -> list[Path]:
    """The copies of a chapter's file, oldest first; copies of files with other names count too."""
    found = (data_folder() / "copies" / chapter.short).glob("*.py")
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))


def keep_copy(chapter: Chapter) -> Path:
    """A copy of the learner's file as it is now: one of those there are, or a new one."""
    content = chapter.stub.read_bytes()
    for copy in reversed(copies_of(chapter)):
        if copy.read_bytes() == content:
            return copy
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = data_folder() / "copies" / chapter.short
    folder.mkdir(parents=True, exist_ok=True)
    for count in itertools.count(1):
        number = f"-{count}" if count > 1 else ""
        path = folder / f"{chapter.stub.stem}-{stamp}{number}.py"
        if not path.exists() and create(path, content):
            return path


def create(path: Path, content: bytes) -> bool:
    """Make the file at `path` with all of `content`; False, and nothing is changed, if there is one already.

    Raises OSError, and leaves nothing behind, if the disk is full.
    """
    draft = _draft(path, content)
    try:
        os.link(draft, path)  # unlike a rename, this refuses to replace a file
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            with path.open("xb"):
                pass
        except FileExistsError:
            return False
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return True


def replace(path: Path, content: bytes) -> None:
    """Give the file at `path` the new `content`, whole or not at all. Raises OSError if the disk is full."""
    draft = _draft(path, content)
    try:
        os.replace(draft, path.resolve() if path.is_symlink() else path)
    finally:
        draft.unlink(missing_ok=True)


def _draft(path: Path, content: bytes) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            draft.chmod(path.stat().st_mode)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft
