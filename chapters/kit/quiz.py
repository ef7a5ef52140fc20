"""Predict-then-run questions: the reader chooses, then the compiler computes the answer.

A chapter's `quiz.py` defines two lists of Question: `PREDICT`, for the lesson's section of that name, and `QUESTIONS`,
for its end and for `python -m chapters quiz`. No answer is written down anywhere: `compute` runs TVM and returns the
right choice, so that an answer cannot go stale. A page shows questions as cards: `Cards(QUESTIONS)`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chapters.kit.draw.drawing import Drawing
from chapters.kit.ir.ir_diff import show


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

    def render(self) -> str:
        """The text of `show`, computed now if it is a function."""
        return self.show() if callable(self.show) else self.show

    def answer(self) -> int:
        """The index of the right choice, computed now. ValueError if it is none of the choices."""
        right = str(self.compute())
        if right not in self.choices:
            raise ValueError(f"{self.ask!r}: the compiler says {right!r}, which is no choice.")
        return self.choices.index(right)


@dataclass(frozen=True, repr=False)
class Cards(Drawing):
    """Questions as cards on a page; the answers are computed when the cards are drawn.

    docs/js/questions.js lets the reader check a choice. Without scripts, or in a notebook, each answer can be unfolded.
    """

    questions: Sequence[Question]

    def __str__(self) -> str:
        return "\n".join(f"{n}. {question.ask}" for n, question in enumerate(self.questions, 1))

    def _repr_html_(self) -> str:
        cards = (self._card(number) for number in range(len(self.questions)))
        return f'<div class="questions">{"".join(cards)}</div>'

    def _card(self, number: int) -> str:
        question, count = self.questions[number], len(self.questions)
        right = question.answer()
        place = f'<span class="question-place">{number + 1} of {count}</span> ' * (count > 1)
        shown = question.render().rstrip()
        # `dialog` keeps Enter from sending the form where scripts do not run
        return (
            f'<form class="question" method="dialog" data-right="{right}" data-search-exclude><fieldset>'
            f"<legend>{place}{_render_prose(question.ask)}</legend>"
            f"{show(shown)._repr_html_() if shown else ''}"
            f"{''.join(map(_render_choice, range(len(question.choices)), question.choices))}</fieldset>"
            f'<details class="question-answer"><summary>Answer</summary>'
            f"<p>Computed: <strong>{_render_prose(question.choices[right])}</strong></p>"
            f"<p>{_render_prose(question.because)}</p></details></form>"
        )


def _render_choice(value: int, text: str) -> str:
    return (
        f'<label class="question-choice"><input type="radio" name="choice" value="{value}"> '
        f"<span>{_render_prose(text)}</span></label>"
    )


def _render_prose(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


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
