"""No terminal, pipe or full disk ends a program of the course in a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

STORY = "chapters.ch00_first_module"
PROGRAMS = ("chapters status", STORY)
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes the streams")


def _run_in_shell(course, command: str) -> subprocess.CompletedProcess:
    """Run a command of bash in the copy, where $PYTHON is this Python."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=course.root,
        env={**course.environment(), "PYTHON": sys.executable, "PYTHONUNBUFFERED": ""},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


def test_a_character_that_the_terminal_lacks_is_replaced(short):
    environment = {**short.environment(), "PYTHONIOENCODING": "ascii"}
    for program in PROGRAMS:
        command = [sys.executable, "-m", *program.split()]
        around = {"cwd": short.root, "env": environment, "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, **around, capture_output=True)
        assert done.returncode == 0 and not done.stderr and b"?" in done.stdout, program


@POSIX
def test_a_reader_who_has_seen_enough_ends_the_program(short):
    """`sleep` lets the program begin to print when the reader has gone."""
    for program in (*PROGRAMS, "chapters doctor"):
        done = _run_in_shell(short, f"(sleep 0.5; exec $PYTHON -m {program}) | true")
        assert done.returncode == 0 and not done.stderr, program


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a disk that is always full")
def test_a_full_disk_gets_one_sentence(short):
    for program in (*PROGRAMS, "chapters doctor"):
        done = _run_in_shell(short, f"$PYTHON -m {program} > /dev/full")
        assert done.returncode == 2 and done.stderr == f"{os.strerror(errno.ENOSPC)}.\n", program


@POSIX
def test_closed_streams_lead_nowhere(short):
    calls = [f"{program} >&-" for program in PROGRAMS]
    for program in (*PROGRAMS, "chapters doctor", "chapters quiz 0"):
        calls.append(f"{program} <&- >&- 2>&-")
    for call in calls:
        done = _run_in_shell(short, f"$PYTHON -m {call}")
        assert done.returncode == 0 and not done.stderr, call
