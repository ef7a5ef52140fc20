"""How a chapter uses what an earlier one built: the learner's own file if it passes its checks, else the reference.

This is the one part of the runner that chapters import.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
# The site sets this, so that what it shows does not depend on what one learner has written.
REFERENCE_ONLY = "FUSION_REFERENCE_ONLY"


def _is_learners(number: int) -> bool:
    if os.environ.get(REFERENCE_ONLY):
        return False
    from chapters.runner.course import chapter
    from chapters.runner.states import has_passed

    return has_passed(chapter(number))


def earlier(number: int) -> ModuleType:
    """Chapter `number`'s exercise file: the learner's if it passes all its checks as it is now."""
    tree = "chapters" if _is_learners(number) else "solutions"
    files = (ROOT / "solutions").glob(f"ch{number:02d}_*/*.py")
    reference = next(path for path in files if path.stem != "second_way")
    return importlib.import_module(f"{tree}.{reference.parent.name}.{reference.stem}")


def unused(numbers: Iterable[int]) -> list[str]:
    """For each of these chapters that was begun and is not used, a line: "your chapter 3 is not used yet: 3.2 is …"."""
    lines = []
    for number in numbers:
        if open_ := _missing(number):
            more = f" and {len(open_) - 3} more" * (len(open_) > 3)
            lines.append(f"your chapter {number} is not used yet: {', '.join(open_[:3])}{more}")
    return lines


def _missing(number: int) -> list[str]:
    """What keeps a begun chapter from being used: "3.2 is not solved", and so on. Empty if it is used or not begun."""
    from chapters.runner.course import chapter
    from chapters.runner.states import states

    says = {
        "todo": "is not solved",
        "failed": "failed its check",
        "skipped": "cannot be checked here",
        "changed": "has changed since its last check",
    }
    found = {} if os.environ.get(REFERENCE_ONLY) else states(chapter(number))
    begun = any(state != "todo" for state in found.values())
    return [f"{one} {says[state]}" for one, state in found.items() if state in says and begun]


def whose(number: int) -> str:
    """Whose code `earlier(number)` gives: "yours" or "the reference's"."""
    return "yours" if _is_learners(number) else "the reference's"
