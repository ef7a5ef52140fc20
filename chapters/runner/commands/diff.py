"""`python -m chapters diff 4.1 [--give-up]`: the reference beside the learner's answer, once that passes."""

from __future__ import annotations

import ast
import re
from difflib import unified_diff

from chapters.runner.course import CourseError
from chapters.runner.course import exercise as find
from chapters.runner.regions import read_source, regions
from chapters.runner.states import states
from chapters.runner.terminal import relative

HELP = "your answer beside the reference, once yours passes"


def arguments(parser) -> None:
    parser.add_argument("exercise")
    about = "show it although yours does not pass"
    parser.add_argument("--give-up", action="store_true", help=about)


def run(options) -> int:
    """Print what differs in the exercise's region; refuses before the check passed unless --give-up."""
    chapter, exercise = find(options.exercise)
    if states(chapter)[exercise.id] != "passed" and not options.give_up:
        raise CourseError(
            f"Exercise {exercise.id} has not passed its check since its last edit. Check it (`python -m chapters check "
            f"{exercise.id}`), take a hint, or see the reference all the same with --give-up."
        )
    if not chapter.stub.exists():
        raise CourseError(
            f"{relative(chapter.stub)} is missing; the reference is {relative(chapter.solution)}."
        )
    texts = [read_source(path) for path in (chapter.stub, chapter.solution)]
    try:
        bodies = [regions(text).get(exercise.id, []) for text in texts]
    except CourseError as error:
        raise CourseError(f"{chapter.file}: {error}") from None
    learners, reference = ("\n".join(body).split("\n") for body in bodies)
    lines = unified_diff(learners, reference, "yours", "reference", lineterm="", n=99)
    print("\n".join(lines) or "Yours is the reference, line by line.")
    second = chapter.solution_folder / "second_way.py"
    exercises = ast.get_docstring(ast.parse(read_source(second))).partition("\n")[0]
    if exercise.id in re.findall(r"\d+\.\d+", exercises):
        print(f"\nAnother right design, and what it costs: {relative(second)}")
    return 0
