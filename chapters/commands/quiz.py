"""`python -m chapters quiz 4`: the reader predicts, the compiler answers."""

from __future__ import annotations

import sys

from chapters.toolkit.course import chapter as find
from chapters.toolkit.quiz import Question, questions


def run(options) -> int:
    """Ask a chapter's questions one by one. Without a terminal to answer at, print them with their answers."""
    chapter = find(options.chapter)
    asked = questions(chapter)
    print(
        f"Chapter {chapter.number}, {chapter.title}: {len(asked)} questions, answered by running TVM.\n"
    )
    right = sum(_ask(number, question) for number, question in enumerate(asked, 1))
    if sys.stdin.isatty():
        print(f"{right} of {len(asked)} predicted.")
    return 0


def _ask(number: int, question: Question) -> bool:
    print(f"{number}. {question.ask}")
    if question.shown():
        print(
            "\n"
            + "\n".join("     " + line for line in question.shown().rstrip().splitlines())
            + "\n"
        )
    letters = "abcdefgh"[: len(question.choices)]
    for letter, choice in zip(letters, question.choices, strict=True):
        print(f"   {letter}) {choice}")
    said = _read(letters) if sys.stdin.isatty() else ""
    truth = letters[question.answer()]
    print(
        f"   {'✓ ' if said == truth else ''}TVM says {truth}) {question.choices[letters.index(truth)]}"
    )
    print(f"   {question.because}\n")
    return said == truth


def _read(letters: str) -> str:
    while True:
        said = input("   your prediction: ").strip().lower()
        if said and said in letters:
            return said
        print(f"   Type one letter of {', '.join(letters)}.")
