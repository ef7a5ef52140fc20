"""Predict-then-run questions: the reader chooses, then the compiler computes the answer.

A chapter's `quiz.py` defines `QUESTIONS`, a list of Question. No answer is written down anywhere: `compute` runs TVM
and returns the right choice, so that an answer cannot go stale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """ask: one sentence. show: IR or code to look at, or "". choices: at least three texts.

    compute: no arguments; runs the compiler and returns the one choice that is right.
    because: the explanation, shown after a right and after a wrong answer.
    """

    ask: str
    choices: tuple[str, ...]
    compute: Callable[[], object]
    because: str
    show: str | Callable[[], str] = ""

    def shown(self) -> str:
        """The text of `show`, computed now if it is a function."""
        return self.show() if callable(self.show) else self.show

    def answer(self) -> int:
        """The index of the right choice, computed now. ValueError if it is none of the choices."""
        right = str(self.compute())
        if right not in self.choices:
            raise ValueError(f"{self.ask!r}: the compiler says {right!r}, which is no choice.")
        return self.choices.index(right)


def outcome(
    act: Callable[[], object], accepted: str = "it is accepted", refused: str = "it is refused"
) -> str:
    """`refused` if `act`, which calls primitives of a schedule, raises a ScheduleError; else `accepted`."""
    from tvm.s_tir import ScheduleError

    try:
        act()
    except ScheduleError:
        return refused
    return accepted
