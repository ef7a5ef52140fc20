"""Predict-then-run questions: the reader chooses, then the compiler computes the answer.

A chapter's `quiz.py` defines `QUESTIONS`, a list of Question. No answer is written down anywhere: `compute` runs TVM
and returns the right choice, so that an answer cannot go stale.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from chapters.toolkit.course import Chapter, CourseError


@dataclass(frozen=True)
class Question:
    """ask: one sentence. show: IR or code to look at, or "". choices: at least three texts.

    compute: no arguments; runs the compiler and returns the one choice that is right.
    because: what to take away, shown after the answer, whichever it was.
    """

    ask: str
    choices: tuple[str, ...]
    compute: Callable[[], str]
    because: str
    show: str | Callable[[], str] = ""

    def shown(self) -> str:
        return self.show() if callable(self.show) else self.show

    def answer(self) -> int:
        """The index of the right choice, computed now. CourseError if it is none of the choices."""
        right = str(self.compute())
        if right not in self.choices:
            raise CourseError(f"{self.ask!r}: the compiler says {right!r}, which is no choice.")
        return self.choices.index(right)


def questions(chapter: Chapter) -> list[Question]:
    """The questions of a chapter; CourseError if it has no quiz."""
    if not (chapter.folder / "quiz.py").exists():
        raise CourseError(f"Chapter {chapter.number} has no quiz.")
    return importlib.import_module(f"chapters.{chapter.slug}.quiz").QUESTIONS
