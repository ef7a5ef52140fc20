"""Whose mistake is it? An exercise that uses another one fails with it, and is itself perhaps right.

A check that failed is run again on the learner's file with the other exercises as the reference has them. If it passes
then, its exercise is right as far as the check sees, and waits for the one that is to be mended first. An answer
without the region markers of its chapter keeps its failure.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from chapters.runner.course import Chapter, CourseError
from chapters.runner.regions import read_source, regions, with_reference


def waits_for(
    chapter: Chapter,
    exercise_id: str,
    impl: Path,
    passes: Callable[[Path], bool],
    is_solved: Callable[[str], bool],
) -> str:
    """The exercise that a failure of `exercise_id` on the file `impl` comes from; "" if it is its own.

    passes: whether the check that failed passes on another file. is_solved: whether another exercise passes its own
    checks on `impl`; such a one is never waited for, since its learner would find nothing to mend there.
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
            # the fewest that make it pass: the last of them is to blame, and all of them do
            mended = 1
            while mended < len(others) and not passes_with(others[:mended]):
                mended += 1
            return "" if is_solved(others[mended - 1]) else others[mended - 1]
    except (CourseError, KeyError):  # markers that are not the chapter's
        return ""
