"""How a chapter uses what an earlier one built: the learner's own if it passes, else the reference."""

from __future__ import annotations

import importlib
from types import ModuleType

from chapters.toolkit.course import chapter
from chapters.toolkit.progress import has_passed


def earlier(number: int) -> ModuleType:
    """Chapter `number`'s exercise file: the learner's if it passes all checks as it stands."""
    home = chapter(number)
    tree = "chapters" if has_passed(home) else "solutions"
    return importlib.import_module(f"{tree}.{home.slug}.{home.stub.stem}")


def whose(number: int) -> str:
    """Whose code `earlier(number)` gives: "yours" or "the reference's"."""
    return "yours" if has_passed(chapter(number)) else "the reference's"
