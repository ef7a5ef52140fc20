"""Fixtures that the course's own tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chapters.toolkit.course import ROOT
from tests.harness.runner import Runner


@pytest.fixture(scope="module")
def runner():
    """Runs checks in a worker of its own, shared by the tests of a file."""
    with Runner() as running:
        yield running


class CourseCopy:
    """A copy of the course in which a test may edit, break and reset what a learner would."""

    def __init__(self, root: Path):
        self.root = root
        self.stub = root / "chapters" / "ch00_first_module" / "first_module.py"

    def python(self, *arguments: str, seconds: float = 120) -> subprocess.CompletedProcess:
        """Run this Python in the copy, and nothing of the original on its path."""
        # pytest repeats whole failures in its summary where these say that a CI system runs it
        inherited = {k: v for k, v in os.environ.items() if k not in ("CI", "BUILD_NUMBER")}
        environment = {
            **inherited,
            "PYTHONPATH": str(self.root),
            "NO_COLOR": "1",
            "PYTHONUTF8": "1",
        }
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )

    def learner(self, *arguments: str) -> subprocess.CompletedProcess:
        """`python -m chapters …`."""
        return self.python("-m", "chapters", *arguments)

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.python("-m", "pytest", *arguments)

    def solve(self, old: str = "", new: str = "") -> None:
        """Put chapter 0's reference where the learner's file is, with `old` replaced by `new`."""
        text = (self.root / "solutions/ch00_first_module/first_module.py").read_text(
            encoding="utf-8"
        )
        assert old in text
        self.stub.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def course(tmp_path) -> CourseCopy:
    """The course as a fresh clone has it: no progress, stubs as generated."""
    root = tmp_path / "course"
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("chapters", "solutions", "tests", "docs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", root)
    copy = CourseCopy(root)
    for lesson in sorted((root / "chapters").glob("ch*/lesson.md")):
        copy.learner("reset", lesson.parent.name)
    shutil.rmtree(root / ".kept", ignore_errors=True)
    return copy
