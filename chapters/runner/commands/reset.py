"""`python -m chapters reset 4.1 | 4`: starts an exercise or a file anew, and keeps a copy of the file."""

from __future__ import annotations

from chapters.runner.course import Chapter, CourseError
from chapters.runner.course import chapter as find_chapter
from chapters.runner.course import exercise as find_exercise
from chapters.runner.learner_file import make_stub, write_file
from chapters.runner.regions import read_source, regions, with_regions
from chapters.runner.terminal import relative

HELP = "start an exercise (4.1) or a chapter's file (4) anew; keeps a copy"


def arguments(parser) -> None:
    parser.add_argument("what")


def run(options) -> int:
    """Reset one exercise's region, or a chapter's whole file."""
    if "." in options.what:
        chapter, exercise = find_exercise(options.what)
        text, untouched = read_source(chapter.stub), regions(make_stub(chapter))
        try:
            fresh = with_regions(text, {exercise.id: untouched[exercise.id]})
        except CourseError as error:
            raise CourseError(
                f"{chapter.file}: {error} `python -m chapters reset {chapter.number}` makes the whole file anew and "
                "keeps a copy of yours."
            ) from None
        return _write_file(chapter, fresh, f"Exercise {exercise.id}", [exercise.id], whole=False)
    chapter = find_chapter(options.what)
    every = [exercise.id for exercise in chapter.exercises]
    return _write_file(chapter, make_stub(chapter), f"Chapter {chapter.number}", every, whole=True)


def _write_file(chapter: Chapter, text: str, what: str, aside: list[str], *, whole: bool) -> int:
    if chapter.stub.read_bytes() == text.encode():
        print(f"{what} is as it was at the start; nothing to do.")
        return 0
    kept = write_file(chapter, text, aside=aside, whole=whole)
    print(f"{what} starts anew in {relative(chapter.stub)}. Your file is kept as {kept}.")
    return 0
