"""The one way in which a chapter uses what an earlier chapter built: the learner's own, if it passes, else the reference."""

from __future__ import annotations

import importlib
from types import ModuleType

from chapters.toolkit.course import chapter
from chapters.toolkit.progress import has_passed


def earlier(number: int) -> ModuleType:
    """The exercise file of chapter `number`: the learner's if every check passes on it as it stands, else the reference."""
    home = chapter(number)
    tree = "chapters" if has_passed(home) else "solutions"
    return importlib.import_module(f"{tree}.{home.slug}.{home.stub.stem}")


def whose(number: int) -> str:
    """Whose code `earlier(number)` gives: "yours" or "the reference's"."""
    return "yours" if has_passed(chapter(number)) else "the reference's"
