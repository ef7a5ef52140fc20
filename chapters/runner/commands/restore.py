"""`python -m chapters restore [4]`: puts the newest copy of your file back, if your file lacks answers that it has."""

from __future__ import annotations

from chapters.runner.course import Chapter, chapters
from chapters.runner.course import chapter as find
from chapters.runner.learner_file import find_lost_answers, put_aside, write_file
from chapters.runner.terminal import relative

HELP = "put back answers that were in your file at an earlier command or check; keeps a copy"


def arguments(parser) -> None:
    parser.add_argument("chapter", nargs="?", help="only this chapter")
    parser.add_argument(
        "--forget",
        action="store_true",
        help="leave your files as they are, and offer these copies no more",
    )


def run(options) -> int:
    """Restore one chapter's file, or every file that has lost answers."""
    done = 0
    for chapter in [find(options.chapter)] if options.chapter else chapters():
        if lost := find_lost_answers(chapter):
            copy, _ = lost
            done += 1
            if options.forget:
                put_aside(chapter, [exercise.id for exercise in chapter.exercises])
                print(
                    f"{relative(chapter.stub)} stays as it is; {copy} is not offered again, and stays too."
                )
                continue
            kept = write_file(chapter, copy.read_bytes(), whole=False)
            print(f"{relative(chapter.stub)} is as in {copy}. What was in it is kept as {kept}.")
    if not done:
        print("No copy has an answer that your files lack.")
    return 0


def describe_offer(chapter: Chapter) -> str:
    """A sentence that offers a copy of a chapter's file; "" if the file lacks nothing."""
    lost = find_lost_answers(chapter)
    if not lost:
        return ""
    copy, exercises = lost
    return (
        f"{relative(chapter.stub)} lacks what a copy of it has for {', '.join(exercises)}. `python -m chapters restore "
        f"{chapter.number}` puts back {copy}; with --forget it is not offered again."
    )
