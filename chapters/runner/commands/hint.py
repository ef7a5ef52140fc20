"""`python -m chapters hint 4.1`: shows the next of an exercise's three hints, and those already shown."""

from __future__ import annotations

from chapters.runner import progress
from chapters.runner.course import exercise as find

HELP = "the next of three hints of an exercise (4.1)"


def arguments(parser) -> None:
    parser.add_argument("exercise")


def run(options) -> int:
    """Print one hint more than last time."""
    chapter, exercise = find(options.exercise)
    hints = chapter.hints(exercise.id)
    if not hints:
        why = ": a capstone is yours from the first line" if exercise.kind == "capstone" else ""
        print(f"Exercise {exercise.id} has no hints{why}.")
        return 1
    shown = progress.count_hint(exercise.id, len(hints))
    for number, text in enumerate(hints[:shown], 1):
        print(f"Hint {number} of {len(hints)}: {text.strip()}\n")
    if shown == len(hints):
        diff = f"python -m chapters diff {exercise.id} --give-up"
        print(f"That was the last. `{diff}` shows the reference.")
    return 0
