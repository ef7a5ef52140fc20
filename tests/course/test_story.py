"""A chapter's story in the terminal: `python -m chapters.chNN_x`."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys

import pytest

from chapters.runner.course import chapters
from chapters.runner.story import Namespace

FIRST = "chapters.ch00_first_module"
PROMPT = "Enter for the next step "


@pytest.mark.parametrize(
    "chapter", [c for c in chapters() if not c.is_capstone], ids=lambda one: one.slug
)
def test_every_story_is_told_to_its_end(chapter, monkeypatch, capsys):
    """The cells are compiled and not run: the labs run where their pages are made."""
    monkeypatch.setattr(Namespace, "run", lambda _, code, line: compile(code, str(line), "exec"))
    monkeypatch.setattr(sys, "argv", [chapter.slug, "--solutions"])
    monkeypatch.setattr(sys, "displayhook", sys.displayhook)
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"chapters.{chapter.slug}", run_name="__main__")
    told = capsys.readouterr().out
    assert end.value.code == 0, told
    titles = re.findall(r"^# ##+ (.+)$", (chapter.folder / "lab.py").read_text("utf-8"), re.M)
    assert len(titles) >= 3
    for title in titles:
        assert f"\n{title}\n─" in told
    assert "the reference's" in told


def test_the_story_shows_what_the_cells_of_a_lab_show(course):
    told = course.python("-m", "chapters.ch06_reduction_epilogue")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "The primitive is the reference's" in told.stdout and "bit-exact: True" in told.stdout


def test_the_story_says_whose_code_it_runs(short):
    told = short.python("-m", FIRST).stdout
    assert "The code is the reference's" in told
    short.solve()
    short.record_as_passed(0)
    assert "All the code is yours." in short.python("-m", FIRST).stdout
    assert "The code is the reference's" in short.python("-m", FIRST, "--solutions").stdout


def test_a_lab_that_fails_ends_the_story_with_the_line(short):
    text = short.lab.read_text(encoding="utf-8") + "\n# %%\n1 / 0\n"
    short.lab.write_text(text, encoding="utf-8")
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
        while (said := _read_until(PROMPT, telling.stdout)).endswith(PROMPT):
            steps += 1
            os.write(ours, b"\n")
    assert steps == 3
    assert telling.wait() == 0
    assert "Read on in chapters/ch00_first_module/lesson.md" in said


def _read_until(end: str, stream) -> str:
    """What can be read up to and with `end`, or all there is."""
    said = ""
    while not said.endswith(end) and (one := stream.read(1)):
        said += one
    return said
