"""No terminal, pipe or full disk ends a program of the course in a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

STORY = "chapters.ch00_first_module"
PROGRAMS = [("chapters", "status"), ("chapters", "doctor"), ("chapters", "quiz", "0"), (STORY,)]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes the streams")


def _shell(course, command: str) -> subprocess.CompletedProcess:
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


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_a_character_that_the_terminal_lacks_is_replaced(program, course):
    environment = {**course.environment(), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", *program]
    done = subprocess.run(
        command, cwd=course.root, env=environment, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert done.returncode == 0 and not done.stderr
    assert b"?" in done.stdout or "doctor" in program  # which may have nothing to say about a GPU


@POSIX
@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_a_reader_who_has_seen_enough_ends_the_program(program, course):
    """`sleep` lets the program begin to print when the reader has gone."""
    done = _shell(course, f"(sleep 0.5; exec $PYTHON -m {' '.join(program)}) | true")
    assert done.returncode == 0 and not done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a disk that is always full")
@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_a_full_disk_gets_one_sentence(program, course):
    done = _shell(course, f"$PYTHON -m {' '.join(program)} > /dev/full")
    assert done.returncode == 2 and done.stderr == f"{os.strerror(errno.ENOSPC)}.\n"


@POSIX
@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_closed_streams_lead_nowhere(program, course):
    for closed in (">&-", "<&- >&- 2>&-"):
        done = _shell(course, f"$PYTHON -m {' '.join(program)} {closed}")
        assert done.returncode == 0 and not done.stderr, closed
