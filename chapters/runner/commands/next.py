"""`python -m chapters next`: the first exercise that has not passed."""

from __future__ import annotations

from chapters.runner.course import chapters
from chapters.runner.states import states
from chapters.runner.terminal import STATE_WORDS, describe

HELP = "the next exercise: where it is, what it asks"


def run(_options) -> int:
    """Print where the next exercise is and the commands that belong to it."""
    for chapter in chapters():
        now = states(chapter)
        for exercise in chapter.exercises:
            if now[exercise.id] != "passed":
                print(describe(chapter, exercise))
                print(f"     state: {STATE_WORDS[now[exercise.id]]}")
                print(f"     python -m chapters check {exercise.id}")
                print(f"     python -m chapters hint {exercise.id}")
                return 0
    print("Every exercise passes.")
    return 0
