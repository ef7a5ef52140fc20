"""`python -m chapters path [day | course | all]`: how much of the course `next`, `status` and the minutes are about."""

from __future__ import annotations

from chapters.runner.course import PATHS, chapters
from chapters.runner.states import choose_path, chosen_path

HELP = "choose a day, the course or all of it: what `next` and `status` go through"
WHAT = {
    "day": "a fusion pass, a primitive that refuses, a compiled decoder, the chat",
    "course": "what later chapters use: every pass, schedule and pipeline",
    "all": "every exercise, and then the capstones, whose hours are not counted",
}


def arguments(parser) -> None:
    parser.add_argument("path", nargs="?", choices=PATHS)


def run(options) -> int:
    """Choose a path if one was named, and print all of them."""
    if options.path:
        choose_path(options.path)
    chosen = chosen_path()
    counted = [chapter for chapter in chapters() if not chapter.is_capstone]
    for path in PATHS:
        minutes = sum(chapter.minutes_on(path) for chapter in counted)
        exercises = sum(len(chapter.exercises_on(path)) for chapter in counted)
        mark = "*" if path == chosen else " "
        print(
            f"{mark} {path:<6} {round(minutes / 60):>3} h, {exercises:>3} exercises: {WHAT[path]}"
        )
    print(
        f"\n`next`, `status` and the minutes follow `{chosen}`. Nothing is locked: every exercise can be checked. "
        "docs/paths.md says what to read for each."
    )
    return 0
