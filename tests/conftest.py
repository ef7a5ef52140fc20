"""Fixtures that the course's own tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import sys
import time

import pytest

from chapters.runner.course import chapter
from chapters.runner.engine import Examiner
from chapters.runner.fresh_copy import FreshCopy
from chapters.runner.worker import name_frames_without_files

name_frames_without_files()
gc.disable()  # while tests are collected, what is made stays


def pytest_collection_finish():
    gc.freeze()  # a later collection has no need to walk through 4,500 tests and TVM
    gc.enable()


@pytest.fixture(scope="session")
def examiner():
    """Runs checks in a child process that all tests share."""
    with Examiner() as running:
        yield running


# records, in a process of the copy, that the exercises of chapters have passed
RECORD = """
import sys
from chapters.runner.course import chapters
from chapters.runner.regions import file_fingerprint as fingerprint
from chapters.runner.states import record_state, states
for chapter in chapters():
    if str(chapter.number) in sys.argv[1:]:
        for exercise in chapter.exercises:
            record_state(chapter, exercise.id, "passed", fingerprint(chapter.stub, exercise.id))
        assert set(states(chapter).values()) <= {"passed", "todo"}, states(chapter)
"""
LAB = "# %% [markdown]\n# # A title\n# ## A part\n# Said.\n# %%\n1\n# %%\n2\n# %%\n3\n"


def folder_in_memory() -> str | None:
    """A folder in which files are made quickly, with room for many copies of the course; None if there is none."""
    memory = "/dev/shm"
    return memory if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30 else None


class CourseCopy(FreshCopy):
    """A copy of the course in which a test edits, breaks and resets chapter 0 as a learner would."""

    FOLDER = folder_in_memory()
    # what the answer of a `paused_check` holds, in a function
    PAUSE = """import os, time
    open("started", "w").close()
    while not os.path.exists("saved"):
        time.sleep(0.05)"""

    @property
    def stub(self):
        return self.file(chapter(0))

    @property
    def lab(self):
        """The lab of chapter 0."""
        return self.stub.parent / "lab.py"

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

    @contextlib.contextmanager
    def paused_check(self, exercise: str):
        """`check` of an exercise whose answer holds PAUSE: it waits there while the block runs."""
        checking = self.begin("check", exercise)
        while not (self.root / "started").exists():
            assert checking.poll() is None
            time.sleep(0.05)
        yield checking
        (self.root / "saved").touch()

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.python("-m", "pytest", *arguments)

    def solve(self, old: str = "", new: str = "") -> None:
        """Write the reference, with `old` replaced by `new`, into the learner's file."""
        text = chapter(0).solution.read_text(encoding="utf-8")
        assert old in text
        self.text = text.replace(old, new)

    def record_as_passed(self, *numbers: int) -> None:
        """Record, without checking them, that all exercises of these chapters that were begun have passed."""
        recorded = self.python("-c", RECORD, *map(str, numbers))
        assert not recorded.returncode, recorded.stderr

    def kept(self, pattern: str = "*.py") -> list[str]:
        """The texts of the copies that were kept."""
        return [p.read_text(encoding="utf-8") for p in self.data.rglob(pattern)]


@pytest.fixture
def course():
    """The course as a fresh clone has it: no progress, stubs as generated."""
    with CourseCopy() as copy:
        yield copy


@pytest.fixture(scope="session")
def untouched():
    """A fresh clone that tests share: they edit no file of it."""
    with CourseCopy() as copy:
        yield copy


@pytest.fixture
def short(course):
    """The course, in which the lab of chapter 0 has three cells that take no time."""
    course.lab.write_text(LAB, encoding="utf-8")
    return course
