"""`python -m chapters quiz 4`: the reader predicts, the compiler answers."""

from __future__ import annotations

import importlib
import sys
import textwrap

from chapters.code_owner import REFERENCE
from chapters.runner.course import Chapter, CourseError
from chapters.runner.course import chapter as find

HELP = "predict, then let the compiler answer (4)"


def arguments(parser) -> None:
    parser.add_argument("chapter")


def about(_options) -> str:
    """The answers are the compiler's; what they need of earlier chapters is the reference's."""
    return REFERENCE


def questions(chapter: Chapter) -> list:
    """The `QUESTIONS` of a chapter's quiz.py; CourseError if it has none."""
    if not (chapter.folder / "quiz.py").exists():
        raise CourseError(f"Chapter {chapter.number} has no quiz.")
    return importlib.import_module(f"chapters.{chapter.slug}.quiz").QUESTIONS


def run(options) -> int:
    """Ask a chapter's questions one by one. Without a terminal to answer at, print them with their answers."""
    chapter = find(options.chapter)
    asked = questions(chapter)
    about = f"{len(asked)} questions, answered by running TVM"
    print(f"Chapter {chapter.number}, {chapter.title}: {about}.\n")
    right = sum(_ask(number, question) for number, question in enumerate(asked, 1))
    if _can_answer():
        print(f"{right} of {len(asked)} predicted.")
    return 0


def _ask(number: int, question) -> bool:
    print(f"{number}. {question.ask}")
    if shown := question.render().rstrip():
        print(f"\n{textwrap.indent(shown, ' ' * 5, lambda _: True)}\n")
    letters = "abcdefgh"[: len(question.choices)]
    for letter, choice in zip(letters, question.choices, strict=True):
        print(f"   {letter}) {choice}")
    said = _read_prediction(letters) if _can_answer() else ""
    answer = question.answer()
    truth = letters[answer]
    mark = "✓ " if said == truth else ""
    print(f"   {mark}TVM says {truth}) {question.choices[answer]}")
    print(f"   {question.because}\n")
    return said == truth


def _can_answer() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _read_prediction(letters: str) -> str:
    while True:
        said = input("   your prediction: ").strip().lower()
        if len(said) == 1 and said in letters:
            return said
        print(f"   Type one letter of {', '.join(letters)}; Ctrl-C leaves the quiz.")
