"""`python -m chapters update [4]`: moves your answers into the file that the newest version of the course would make.

After a `git pull`, what surrounds the exercises in your file may be older than the course. Git ignores your file, so
the pull leaves it as it is; this command makes the new one around your answers and keeps a copy of the old one.
"""

from __future__ import annotations

from chapters.runner.course import chapter as find
from chapters.runner.course import chapters
from chapters.runner.learner_file import (
    describe_moves,
    is_outdated,
    move_answers,
    note_origin,
    write_file,
)
from chapters.runner.regions import read_source
from chapters.runner.terminal import relative

HELP = "after a git pull: your answers in the newest version of a chapter's file; keeps a copy"


def arguments(parser) -> None:
    parser.add_argument("chapter", nargs="?", help="only this chapter")


def run(options) -> int:
    """Update one chapter's file, or every file that is older than the course."""
    chosen = [find(options.chapter)] if options.chapter else list(filter(is_outdated, chapters()))
    for chapter in chosen:
        old, text = read_source(chapter.stub), move_answers(chapter)
        if old == text:
            note_origin(chapter)
            print(f"{relative(chapter.stub)} is up to date.")
            continue
        became = describe_moves(chapter, old)
        every = [exercise.id for exercise in chapter.exercises]
        kept = write_file(chapter, text, aside=every)
        if not old.strip():
            print(f"{relative(chapter.stub)} is new; yours was empty.")
            continue
        print(
            f"{relative(chapter.stub)} is new, with your answers in it. Your file is kept as {kept}: copy from there "
            "what you had written outside of the exercises."
        )
        for sentence in became:
            print(sentence)
    if not chosen:
        print("Every file is up to date.")
    return 0
