"""`python -m chapters reset 4.2 | 4`: puts a stub back. The learner's file is copied to `.kept/` first."""

from __future__ import annotations

from chapters.toolkit.course import Chapter, CourseError
from chapters.toolkit.course import chapter as find_chapter
from chapters.toolkit.course import exercise as find_exercise
from chapters.toolkit.progress import keep_copy
from chapters.toolkit.stub import read_source, restore, stub_text, write_stub
from chapters.toolkit.terminal import shown


def run(options) -> int:
    """Reset one exercise's region, or a chapter's whole file."""
    if "." in options.what:
        chapter, exercise = find_exercise(options.what)
        if not chapter.stub.exists():
            raise CourseError(
                f"{shown(chapter.stub)} is missing; `python -m chapters reset {chapter.number}` makes it anew."
            )
        try:
            fresh = restore(read_source(chapter.stub), chapter, exercise.id)
        except CourseError as error:
            raise CourseError(
                f"{error} `python -m chapters reset {chapter.number}` makes the whole file anew and "
                "keeps a copy of yours."
            ) from None
        return _write(chapter, fresh, f"Exercise {exercise.id}")
    chapter = find_chapter(options.what)
    if not chapter.stub.exists():
        print(f"Made {shown(write_stub(chapter))}.")
        return 0
    return _write(chapter, stub_text(chapter), f"Chapter {chapter.number}")


def _write(chapter: Chapter, text: str, what: str) -> int:
    if chapter.stub.read_bytes() == text.encode():
        print(f"{what} is as it was at the start; nothing to do.")
        return 0
    kept = keep_copy(chapter.stub)
    chapter.stub.write_text(text, encoding="utf-8", newline="\n")
    print(f"{what} starts anew in {shown(chapter.stub)}. Your file is kept as {shown(kept)}.")
    return 0
