"""Copies of the learner's files, kept with the progress outside of the checkout.

One is made whenever a file with answers has changed since the newest copy and the course looks at it: at each command
and each check, and before the course writes to the file. So an answer that `git checkout`, `git clean` or an
editor has removed can be put back.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from pathlib import Path

from chapters.runner.course import Chapter, chapters
from chapters.runner.progress import CHECKOUT, data_folder, find_abandoned_folders, make_data_folder


def copies_of(chapter: Chapter) -> list[Path]:
    """The copies of a chapter's file, oldest first; copies of files with other names count too."""
    return _copies_in(data_folder(), chapter)


def _copies_in(data: Path, chapter: Chapter) -> list[Path]:
    return sorted(_folder(data, chapter).glob("*.py"), key=copy_number)


def _folder(data: Path, chapter: Chapter) -> Path:
    return data / "copies" / chapter.short


def follow_checkout() -> str:
    """Take over what was kept for this checkout before it was moved or renamed; the sentence that says so, or "".

    It is known by an answer that is as in its newest copy.
    """
    if data_folder().exists():
        return ""
    for old in find_abandoned_folders():
        for chapter in chapters():
            copies = _copies_in(old, chapter)
            with contextlib.suppress(OSError):
                if copies and copies[-1].read_bytes() == chapter.stub.read_bytes():
                    os.rename(old, data_folder())
                    (data_folder() / CHECKOUT).unlink()
                    make_data_folder()
                    return f"This folder has another name now; your progress and copies are in {data_folder()}."
    return ""


def copy_number(copy: Path) -> int:
    """Copies of a chapter are numbered: a clock may go backwards."""
    found = re.match(r"(\d+)-", copy.name)
    return int(found[1]) if found else 0


def is_newest_copy(chapter: Chapter, content: bytes) -> bool:
    """Whether the newest copy of a chapter's file holds `content`."""
    return any(copy.read_bytes() == content for copy in copies_of(chapter)[-1:])


def keep_copy(chapter: Chapter) -> Path:
    """The newest copy of the learner's file, made unless the file is as it was then."""
    content, before = chapter.stub.read_bytes(), copies_of(chapter)
    if is_newest_copy(chapter, content):
        return before[-1]
    folder = _folder(make_data_folder(), chapter)
    folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(copy_number(before[-1]) + 1 if before else 1):
        name = f"{number:04}-{time.strftime('%Y%m%d-%H%M%S')}-{chapter.stub.stem}.py"
        if not list(folder.glob(f"{number:04}-*")) and create_file(folder / name, content):
            return folder / name


def create_file(path: Path, content: bytes) -> bool:
    """Make the file at `path` with all of `content`; False, and nothing is changed, if there is one already.

    Raises OSError, and leaves nothing behind, if the disk is full.
    """
    draft = _write_draft(path, content)
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


def replace_file(path: Path, content: bytes) -> None:
    """Give the file at `path` the new `content`, whole or not at all. Raises OSError if the disk is full."""
    draft = _write_draft(path, content)
    try:
        os.replace(draft, path.resolve() if path.is_symlink() else path)
    finally:
        draft.unlink(missing_ok=True)


def _write_draft(path: Path, content: bytes) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            draft.chmod(path.stat().st_mode)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):  # the system names no file if the disk is full
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    return draft
