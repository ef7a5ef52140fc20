"""`python -m chapters next`: the first exercise that is left to solve on this machine."""

from __future__ import annotations

from chapters.runner.states import states, upcoming
from chapters.runner.terminal import ALL_PASS, STATE_WORDS, describe

HELP = "the next exercise: where it is, what it asks"


def run(_options) -> int:
    """Print where the next exercise is and the commands that belong to it."""
    left = upcoming()
    if left is None:
        print(ALL_PASS)
        return 0
    chapter, exercise = left
    print(describe(chapter, exercise))
    print(f"     state: {STATE_WORDS[states(chapter)[exercise.id]]}")
    print(f"     python -m chapters check {exercise.id}")
    print(f"     python -m chapters hint {exercise.id}")
    return 0
