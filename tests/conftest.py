"""Fixtures that the course's own tests share."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from chapters.runner.course import chapter
from chapters.runner.engine import Examiner
from chapters.runner.fresh_copy import FreshCopy

# TVM's parser asks `inspect` for the module of each of its callers, and `inspect` seeks those that have none among all
# modules, each time anew. It remembers here what it has found.
for nowhere in (
    "ast",
    "string",
    "frozen importlib._bootstrap",
    "frozen importlib._bootstrap_external",
):
    inspect.modulesbyfile[f"<{nowhere}>"] = "builtins"


@pytest.fixture(scope="session")
def examiner():
    """Runs checks in a child process that all tests share."""
    with Examiner() as running:
        yield running


class CourseCopy(FreshCopy):
    """A copy of the course in which a test edits, breaks and resets chapter 0 as a learner would."""

    @property
    def stub(self):
        return self.file(chapter(0))

    @property
    def text(self) -> str:
        """The text of the learner's file."""
        return self.stub.read_text(encoding="utf-8")

    @text.setter
    def text(self, text: str) -> None:
        self.stub.write_text(text, encoding="utf-8", newline="\n")

    def learner(self, *arguments: str) -> subprocess.CompletedProcess:
        """`python -m chapters …`."""
        return self.python("-m", "chapters", *arguments)

    def begin(self, *arguments: str) -> subprocess.Popen:
        """`python -m chapters …`, without waiting for its end."""
        return subprocess.Popen(
            [sys.executable, "-u", "-m", "chapters", *arguments],
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.python("-m", "pytest", *arguments)

    def solve(self, old: str = "", new: str = "") -> None:
        """Write the reference, with `old` replaced by `new`, into the learner's file."""
        text = chapter(0).solution.read_text(encoding="utf-8")
        assert old in text
        self.text = text.replace(old, new)

    def kept(self, pattern: str = "*.py") -> list[str]:
        """The texts of the copies that were kept."""
        return [p.read_text(encoding="utf-8") for p in self.data.rglob(pattern)]


@pytest.fixture
def course():
    """The course as a fresh clone has it: no progress, stubs as generated."""
    with CourseCopy() as copy:
        yield copy
