"""A copy of the course in a temporary folder, every exercise as at the start: the place to show what a command says.

A page must show the same to everyone, so it may not run in a folder where somebody has already solved exercises.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from chapters.toolkit.course import ROOT, Chapter, chapters
from chapters.toolkit.stub import stub_text

PARTS = ("chapters", "solutions", "tests", "docs", "pyproject.toml")
SECONDS = 120


class FreshCopy:
    """A context manager; `root` is the copy. It is removed at the end."""

    def __enter__(self) -> FreshCopy:
        self._folder = tempfile.TemporaryDirectory(prefix="fusion-", ignore_cleanup_errors=True)
        self.root = Path(self._folder.name).resolve() / "fusion-by-hand"
        self.root.mkdir()
        for part in PARTS:
            source, target = ROOT / part, self.root / part
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        for chapter in chapters():
            if not chapter.solution.exists():  # a chapter that is still being written
                continue
            self.file(chapter).write_text(stub_text(chapter), encoding="utf-8", newline="\n")
        return self

    def __exit__(self, *_) -> None:
        self._folder.cleanup()

    def file(self, chapter: Chapter) -> Path:
        """The learner's file of `chapter` in the copy."""
        return self.root / chapter.stub.relative_to(ROOT)

    def edit(self, chapter: Chapter, old: str, new: str) -> None:
        """Replace the text `old` in the learner's file of `chapter`. ValueError if it does not stand there once."""
        path = self.file(chapter)
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(
                f"{path.name} holds {old!r} {text.count(old)} times; it must stand there once."
            )
        path.write_text(text.replace(old, new), encoding="utf-8", newline="\n")

    def type(self, *arguments: str) -> str:
        """What `python -m <arguments>` prints in the copy, without the copy's path and colours."""
        env = {**os.environ, "NO_COLOR": "1", "PYTHONUTF8": "1", "COLUMNS": "80"}
        for name in ("PYTHONPATH", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "FORCE_COLOR"):
            env.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.root,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )
        return done.stdout.replace(str(self.root), self.root.name).rstrip()
