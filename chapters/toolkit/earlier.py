"""How a chapter uses what an earlier one built: the learner's own if it passes, else the reference."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from chapters.toolkit.course import chapter
from chapters.toolkit.progress import has_passed

# The site sets this, so that what it shows does not depend on what one learner has written.
REFERENCE_ONLY = "FUSION_REFERENCE_ONLY"


def _is_learners(number: int) -> bool:
    return not os.environ.get(REFERENCE_ONLY) and has_passed(chapter(number))


def earlier(number: int) -> ModuleType:
    """Chapter `number`'s exercise file: the learner's if it passes all checks as it stands."""
    home = chapter(number)
    tree = "chapters" if _is_learners(number) else "solutions"
    return importlib.import_module(f"{tree}.{home.slug}.{home.stub.stem}")


def whose(number: int) -> str:
    """Whose code `earlier(number)` gives: "yours" or "the reference's"."""
    return "yours" if _is_learners(number) else "the reference's"
