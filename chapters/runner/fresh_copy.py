"""A copy of the course in a temporary folder, with every exercise as at the start, to show what a command prints.

A page must show the same to everyone, so it may not run in a folder where exercises have been solved.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from chapters.code_owner import WHOSE
from chapters.runner.course import ROOT, Chapter, chapters
from chapters.runner.learner_file import make_stub
from chapters.runner.progress import DATA

PARTS = ("chapters", "solutions", "tests", "docs")
SECONDS = 120
# these would change the output: the last two make pytest repeat whole failures in its summary
NOT_INHERITED = (
    "PYTEST_CURRENT_TEST",
    "PYTEST_ADDOPTS",
    "FORCE_COLOR",
    "CI",
    "BUILD_NUMBER",
    WHOSE,
)


class FreshCopy:
    """A context manager; `root` is the copy, `data` has what is kept for its learner. Both are removed at the end.

    FOLDER: where it is made; None: where the system has temporary files.
    """

    FOLDER: str | None = None

    def __enter__(self) -> FreshCopy:
        self._folder = tempfile.TemporaryDirectory(
            prefix="fusion-", dir=self.FOLDER, ignore_cleanup_errors=True
        )
        self.root = Path(self._folder.name).resolve() / "fusion-by-hand"
        self.data = self.root.parent / "data"
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        for part in PARTS:
            shutil.copytree(
                ROOT / part,
                self.root / part,
                ignore=ignored,
                copy_function=shutil.copyfile,  # without the mode: the original may be read-only
                ignore_dangling_symlinks=True,  # an editor's lock is one
            )
        shutil.copy(ROOT / "pyproject.toml", self.root)
        for chapter in chapters():
            self.file(chapter).write_text(make_stub(chapter), encoding="utf-8", newline="\n")
        return self

    def __exit__(self, *_) -> None:
        self._folder.cleanup()

    def file(self, chapter: Chapter) -> Path:
        """The learner's file of `chapter` in the copy."""
        return self.root / chapter.stub.relative_to(ROOT)

    def edit(self, chapter: Chapter, old: str, new: str) -> None:
        """Replace the text `old` in the learner's file of `chapter`. ValueError unless it occurs exactly once."""
        path = self.file(chapter)
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{path.name} holds {old!r} {text.count(old)} times, and not once.")
        path.write_text(text.replace(old, new), encoding="utf-8", newline="\n")

    def environment(self) -> dict[str, str]:
        """The variables of a process in the copy, which must find nothing of the original."""
        inherited = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
        own = {"PYTHONPATH": str(self.root), "NO_COLOR": "1", "PYTHONUTF8": "1", "COLUMNS": "80"}
        own[DATA] = str(self.data)
        return {**inherited, **own}

    def python(self, *arguments: str, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess:
        """Run this Python in the copy, with nothing to read from standard input."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )

    def type(self, *arguments: str) -> str:
        """What `python -m <arguments>` prints in the copy, without the copy's path and colours."""
        done = self.python("-m", *arguments, stderr=subprocess.STDOUT)
        said = done.stdout.replace(str(self.root), self.root.name)
        return re.sub(rf"{re.escape(str(self.data))}/[\w-]+", "…", said).rstrip()
