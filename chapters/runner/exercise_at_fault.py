"""Whose mistake is it? An exercise fails if another exercise that it uses is wrong, although it may itself be right.

A check that failed is run again on the learner's file with the other exercises as the reference has them. If it passes
then, its exercise is right as far as the check can tell, and waits for the exercise that must be mended first. An
answer without the region markers of its chapter keeps its failure.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from chapters.runner.course import Chapter, CourseError
from chapters.runner.regions import read_source, regions, with_reference


def find_exercise_at_fault(
    chapter: Chapter,
    exercise_id: str,
    impl: Path,
    passes: Callable[[Path], bool],
    is_solved: Callable[[str], bool],
) -> str:
    """The other exercise that makes a check of `exercise_id` fail on the file `impl`; "" if the mistake is its own.

    passes: whether the check that failed passes on another file. is_solved: whether another exercise passes its own
    checks on `impl`. An exercise never waits for a solved one, because the learner would find no mistake there.
    """
    try:
        text = read_source(impl)
        others = [key for key in regions(text) if key != exercise_id]
        others = [key for key in others if with_reference(text, chapter, {key}) != text]
        with tempfile.TemporaryDirectory(prefix="fusion-") as folder:
            copy = Path(folder) / chapter.slug / impl.name
            copy.parent.mkdir()

            def passes_with(exercise_ids: list[str]) -> bool:
                mended = with_reference(text, chapter, set(exercise_ids))
                copy.write_text(mended, encoding="utf-8", newline="\n")
                return passes(copy)

            if not others or not passes_with(others):
                return ""
            # mend one exercise after the other until the check passes: the last one is to blame
            mended = 1
            while mended < len(others) and not passes_with(others[:mended]):
                mended += 1
            return "" if is_solved(others[mended - 1]) else others[mended - 1]
    except (CourseError, KeyError):  # markers that are not the chapter's
        return ""
