"""Small things a terminal shows: progress bars and paths one can click."""

from __future__ import annotations

import os
from pathlib import Path

from chapters.runner.course import PATHS, Chapter, Exercise
from chapters.runner.regions import find_first_line

STATE_WORDS = {
    "passed": "passed",
    "failed": "failed its last check",
    "todo": "TODO",
    "skipped": "skipped by its last check, which cannot run here",
    "changed": "edited, not checked yet",
    "outdated": "not checked since the checks changed",
}


def describe_all_passed(path: str) -> str:
    """What to say when no exercise of one of PATHS is left."""
    if path == PATHS[-1]:
        return "Every exercise that can run on this machine passes."
    more = PATHS[PATHS.index(path) + 1]
    last = (
        "docs/paths.md says how the day ends: the pipeline and the chat. Then "
        if path == "day"
        else ""
    )
    return (
        f"Every exercise of the path `{path}` that can run on this machine passes; "
        f"{last}`python -m chapters path {more}` goes on."
    )


def bar(done: int, total: int) -> str:
    """A bar of 20 characters, `done` of `total` filled."""
    filled = round(20 * done / total) if total else 0
    return "█" * filled + "░" * (20 - filled)


def relative(path: Path) -> str:
    """`path` relative to the current folder, or absolute if that is on another drive or has been removed."""
    try:
        return os.path.relpath(path)
    except (ValueError, FileNotFoundError):
        return str(path)


def locate(chapter: Chapter, exercise: Exercise) -> str:
    """Where to edit: `file:line`, as terminals and editors make clickable."""
    if not chapter.stub.exists():
        return relative(chapter.stub)
    line = find_first_line(chapter.stub.read_text(encoding="utf-8", errors="replace"), exercise.id)
    return f"{relative(chapter.stub)}:{line}"


def describe(chapter: Chapter, exercise: Exercise) -> str:
    """Three lines: the exercise, the line to edit and the section to read."""
    return (
        f"{exercise.id}  {exercise.title} ({exercise.kind}, {exercise.minutes} min)\n"
        f"     edit {locate(chapter, exercise)}\n"
        f"     read {relative(chapter.lesson)}, “Exercise {exercise.id}”"
    )
