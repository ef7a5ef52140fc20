"""Whose code a run is about: the reference's, unless somebody asked for the learner's.

`python -m chapters …` and a chapter's story ask for it before they import anything else of the course, and so does a
lab that a person runs by itself. The decision stands in an environment variable, so the processes that a run starts
take it over. `pytest`, the site and the outputs of pages are about the reference: they look at no file, record or
cache of a learner's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

CHAPTERS = Path(__file__).resolve().parent
WHOSE = "FUSION_WHOSE"  # the environment variable
LEARNER, REFERENCE = "learner", "reference"


def set_owner(owner: str) -> None:
    """Make this process, and those it starts, about LEARNER or REFERENCE, unless its parent has decided already."""
    if owner not in (LEARNER, REFERENCE):
        raise ValueError(f"a run is about {LEARNER!r} or {REFERENCE!r}, and not {owner!r}")
    os.environ.setdefault(WHOSE, owner)


def is_about_learner() -> bool:
    """Whether this run may see the learner's files."""
    if WHOSE not in os.environ:
        set_owner(LEARNER if _is_lab() else REFERENCE)
    return os.environ[WHOSE] == LEARNER


def _is_lab() -> bool:
    """Whether a person runs a lab by itself: in a notebook, or as a program in a chapter's folder."""
    if "ipykernel" in sys.modules:
        return True
    program = Path(getattr(sys.modules["__main__"], "__file__", None) or "").resolve()
    return program.parent.parent == CHAPTERS and program.parent.name.startswith("ch")
