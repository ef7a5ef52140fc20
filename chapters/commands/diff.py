"""`python -m chapters diff 4.2 [--give-up]`: the reference beside the learner's answer, once that passes."""

from __future__ import annotations

from difflib import unified_diff

from chapters.toolkit.course import CourseError
from chapters.toolkit.course import exercise as find
from chapters.toolkit.progress import states
from chapters.toolkit.stub import read_source, regions
from chapters.toolkit.terminal import shown


def run(options) -> int:
    """Print what differs in the exercise's region; refuses before the check passed unless --give-up."""
    chapter, exercise = find(options.exercise)
    if states(chapter)[exercise.id] != "passed" and not options.give_up:
        raise CourseError(
            f"Exercise {exercise.id} has not passed its check as it stands. Check it (`python -m chapters check "
            f"{exercise.id}`), take a hint, or see the reference all the same with --give-up."
        )
    if not chapter.stub.exists():
        raise CourseError(
            f"{shown(chapter.stub)} is missing; the reference is {shown(chapter.solution)}."
        )
    mine = regions(read_source(chapter.stub)).get(exercise.id, [])
    reference = regions(chapter.solution.read_text(encoding="utf-8"))[exercise.id]
    lines = list(
        unified_diff(
            "\n".join(mine).split("\n"),
            "\n".join(reference).split("\n"),
            "yours",
            "reference",
            lineterm="",
            n=99,
        )
    )
    print("\n".join(lines) if lines else "Yours is the reference, line by line.")
    second = chapter.solution_folder / "second_way.py"
    if second.exists():
        print(f"\nAnother right design, and what it costs: {shown(second)}")
    return 0
