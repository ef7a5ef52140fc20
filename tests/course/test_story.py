"""A chapter's story in the terminal: `python -m chapters.chNN_x`."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from chapters.child import patience
from chapters.runner.course import ROOT, chapters

FIRST = "chapters.ch00_first_module"
PROMPT = "Enter for the next step "
LAB = "# %% [markdown]\n# # A title\n# ## A part\n# Said.\n# %%\n1\n# %%\n2\n# %%\n3\n"


@pytest.fixture
def short(course):
    """The course, in which the lab of chapter 0 has three cells that take no time."""
    lab = course.root / "chapters" / "ch00_first_module" / "lab.py"
    lab.write_text(LAB, encoding="utf-8")
    return course


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the time of a child")
@pytest.mark.parametrize(
    "chapter", [c for c in chapters() if not c.is_capstone], ids=lambda one: one.slug
)
def test_every_story_is_told_to_its_end_in_fifteen_seconds(chapter, course):
    before = os.times()
    told = course.python("-m", f"chapters.{chapter.slug}", "--solutions")
    spent = os.times().children_user - before.children_user
    assert told.returncode == 0, told.stdout + told.stderr
    lab = (ROOT / "chapters" / chapter.slug / "lab.py").read_text(encoding="utf-8")
    titles = re.findall(r"^# ##+ (.+)$", lab, re.MULTILINE)
    assert len(titles) >= 3
    for title in titles:
        assert f"\n{title}\n─" in told.stdout
    assert "the reference's" in told.stdout
    assert spent < 15 * patience()  # of all its processes, on however many cores


def test_the_story_says_whose_code_it_runs(short):
    told = short.python("-m", FIRST).stdout
    assert "The code is the reference's" in told
    short.solve()
    short.learner("check", "0")
    assert "All the code is yours." in short.python("-m", FIRST).stdout
    assert "The code is the reference's" in short.python("-m", FIRST, "--solutions").stdout


def test_a_lab_that_fails_ends_the_story_with_the_line(short):
    lab = short.root / "chapters" / "ch00_first_module" / "lab.py"
    text = lab.read_text(encoding="utf-8") + "\n# %%\n1 / 0\n"
    lab.write_text(text, encoding="utf-8")
    told = short.python("-m", FIRST)
    assert told.returncode == 1 and "\n3\n" in told.stdout
    assert f"Line {len(text.splitlines())} of lab.py failed: ZeroDivisionError" in told.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_pause_waits_for_enter_after_each_step(short):
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-u", "-m", FIRST, "--pause"]
    around = {"cwd": short.root, "env": short.environment(), "encoding": "utf-8"}
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, **around) as telling:
        steps = 0
        while (said := _until(PROMPT, telling.stdout)).endswith(PROMPT):
            steps += 1
            os.write(ours, b"\n")
    assert steps == 3
    assert telling.wait() == 0
    assert "Read on in chapters/ch00_first_module/lesson.md" in said


def _until(end: str, stream) -> str:
    """What can be read up to and with `end`, or all there is."""
    said = ""
    while not said.endswith(end) and (one := stream.read(1)):
        said += one
    return said
