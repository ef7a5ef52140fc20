"""Small things a terminal shows: progress bars and paths one can click."""

from __future__ import annotations

import os
from pathlib import Path

from chapters.runner.course import ROOT, Chapter, Exercise
from chapters.runner.regions import first_line

STATE_WORDS = {
    "passed": "passed",
    "failed": "failed its last check",
    "todo": "TODO",
    "skipped": "skipped by its last check, which cannot run here",
    "changed": "edited, not checked yet",
}


def bar(done: int, total: int, width: int = 20) -> str:
    """A bar of `width` characters, `done` of `total` filled."""
    filled = round(width * done / total) if total else 0
    return "█" * filled + "░" * (width - filled)


def shown(path: Path) -> str:
    """`path` from the folder one stands in, or whole if it lies elsewhere."""
    try:
        return os.path.relpath(path)
    except ValueError:  # another drive on Windows
        return str(path)


def place(chapter: Chapter, exercise: Exercise) -> str:
    """Where to edit: `file:line`, as terminals and editors make clickable."""
    if not chapter.stub.exists():
        return shown(chapter.stub)
    line = first_line(chapter.stub.read_text(encoding="utf-8", errors="replace"), exercise.id)
    return f"{shown(chapter.stub)}:{line}"


def describe(chapter: Chapter, exercise: Exercise) -> str:
    """Two lines: which exercise, and where it is and is explained."""
    lesson = shown(ROOT / chapter.lesson)
    return (
        f"{exercise.id}  {exercise.title} ({exercise.kind}, {exercise.minutes} min)\n"
        f"     edit {place(chapter, exercise)}\n"
        f"     read {lesson}, “Exercise {exercise.id}”"
    )
