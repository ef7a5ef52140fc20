"""How a chapter uses what an earlier one built: the learner's file if it passes and the run is about it, else ours.

This is the one part of the runner that chapters import. `chapters/whose_code.py` says whose code a run is about.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from chapters.whose_code import about_learner

ROOT = Path(__file__).resolve().parents[2]


def _is_learners(number: int) -> bool:
    if not about_learner():
        return False
    from chapters.runner.course import chapter
    from chapters.runner.states import has_passed

    return has_passed(chapter(number))


def earlier(number: int) -> ModuleType:
    """Chapter `number`'s exercise file: the learner's if this run is about it and it passes all its checks, else the
    reference. Raises CourseError if the learner's file passed its checks and can no longer be imported.
    """
    if not _is_learners(number):
        reference = _reference(number)
        return importlib.import_module(f"solutions.{reference.parent.name}.{reference.stem}")
    from chapters.runner.course import CourseError, chapter

    home = chapter(number)
    try:
        return importlib.import_module(f"chapters.{home.slug}.{home.stub.stem}")
    except CourseError:  # of a chapter that this one uses
        raise
    except Exception as error:
        from chapters.runner.loading import last_line

        raise CourseError(
            f"Your chapter {number} passed its checks, and now cannot be imported: {last_line(error)}. "
            f"`python -m chapters check {number}` says more."
        ) from error


def _reference(number: int) -> Path:
    """The file of chapter `number`'s reference. The lesson says its name, and is read only where there are others too.

    A page that uses an earlier chapter would depend on the text of every lesson otherwise.
    """
    folders = ROOT.glob(f"solutions/ch{number:02d}_*")
    found = [path for folder in folders for path in folder.glob("*.py")]
    found = [path for path in found if path.stem != "second_way"]
    if len(found) == 1:
        return found[0]
    from chapters.runner.course import chapter

    return chapter(number).solution


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
    if not about_learner():
        return []
    from chapters.runner.course import chapter
    from chapters.runner.states import states

    says = {
        "todo": "is not solved",
        "failed": "failed its check",
        "skipped": "cannot be checked here",
        "changed": "has changed since its last check",
        "outdated": "was checked by older checks",
    }
    found = states(chapter(number))
    begun = any(state != "todo" for state in found.values())
    return [f"{one} {says[state]}" for one, state in found.items() if state in says and begun]


def whose(number: int) -> str:
    """Whose code `earlier(number)` gives: "yours" or "the reference's"."""
    return "yours" if _is_learners(number) else "the reference's"


def whose_is_run(numbers: Iterable[int]) -> str:
    """One sentence on whose code is run."""
    numbers = list(numbers)
    mine = [str(n) for n in numbers if whose(n) == "yours"]
    if not mine:
        return (
            "The code is the reference's; yours takes its place once a chapter passes its checks."
        )
    if len(mine) == len(numbers):
        return "All the code is yours."
    chapters = f"chapter{'s' * (len(mine) > 1)} {', '.join(mine)}"
    return f"The code of {chapters} is yours, the rest the reference's."
