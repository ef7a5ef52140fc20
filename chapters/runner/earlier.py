"""How a chapter uses what an earlier one built: each answer of the learner's that passes, if the run is about them.

What they have not solved is the reference's. This is the one part of the runner that chapters import.
`chapters/code_owner.py` says whose code a run is about.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from chapters.code_owner import is_about_learner

if TYPE_CHECKING:
    from chapters.runner.course import Chapter

ROOT = Path(__file__).resolve().parents[2]
YOURS, THE_REFERENCES = "yours", "the reference's"
MADE_OF = "__made_of__"  # in a module with the reference's answers in it: the learner's file


def _list_passed(number: int) -> list[str]:
    """The exercises of chapter `number` whose answers are the learner's in this run."""
    if not is_about_learner():
        return []
    from chapters.runner.course import chapter
    from chapters.runner.states import passed_exercises

    return passed_exercises(chapter(number))


def earlier(number: int) -> ModuleType:
    """Chapter `number`'s exercise file.

    In a run about the learner it is theirs, with the reference's answers for the exercises that have not passed their
    checks; in any other run, and if none has passed, it is the reference. Raises CourseError if the learner's file
    passed its checks and can no longer be imported.
    """
    passed = _list_passed(number)
    if not passed:
        reference = _find_reference(number)
        return importlib.import_module(f"solutions.{reference.parent.name}.{reference.stem}")
    from chapters.runner.course import CourseError, chapter

    home = chapter(number)
    name = f"chapters.{home.slug}.{home.stub.stem}"
    try:
        if len(passed) < len(home.exercises) and name not in sys.modules:
            return _import_completed(home, name, passed)
        return importlib.import_module(name)
    except CourseError:  # of a chapter that this one uses
        raise
    except Exception as error:
        from chapters.runner.loading import last_line

        raise CourseError(
            f"Your chapter {number} passed its checks, and now cannot be imported: {last_line(error)}. "
            f"`python -m chapters check {number}` says more."
        ) from error


def _import_completed(home: Chapter, name: str, passed: list[str]) -> ModuleType:
    """Import the learner's file, with the reference's answers to all exercises but `passed`, as `name`.

    It is written to a file: TVMScript reads the source of what it parses.
    """
    from chapters.runner.copies import replace_file
    from chapters.runner.course import CourseError
    from chapters.runner.progress import make_data_folder
    from chapters.runner.regions import read_source, with_reference

    others = {exercise.id for exercise in home.exercises} - set(passed)
    try:
        content = with_reference(read_source(home.stub), home, others).encode()
    except CourseError as error:
        raise CourseError(f"{home.file}: {error}") from None
    path = make_data_folder() / "completed" / home.short / home.file
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != content:
        replace_file(path, content)
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    setattr(module, MADE_OF, str(home.stub))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _find_reference(number: int) -> Path:
    """The file of chapter `number`'s reference. The lesson says its name, and is read only where there are others too.

    A page that uses an earlier chapter would depend on the text of every lesson otherwise.
    """
    solutions = ROOT / "solutions"
    # `listdir`: what else lies there changes nothing, so that a page does not depend on it (see `chapters/opened.py`)
    slugs = [name for name in os.listdir(solutions) if name.startswith(f"ch{number:02d}_")]
    found = [solutions / slug / name for slug in slugs for name in os.listdir(solutions / slug)]
    found = [path for path in found if path.suffix == ".py" and path.stem != "second_way"]
    if len(found) == 1:
        return found[0]
    from chapters.runner.course import chapter

    return chapter(number).solution


def explain_unused(numbers: Iterable[int]) -> list[str]:
    """For each of these chapters with answers that are not used, a line on why: they have not passed as they are."""
    if not is_about_learner():
        return []
    from chapters.runner.course import chapter
    from chapters.runner.states import states

    says = {
        "failed": "failed its check",
        "changed": "has changed since its last check",
        "outdated": "was checked by older checks",
    }
    lines = []
    for number in numbers:
        found = states(chapter(number))
        open_ = [f"{one} {says[state]}" for one, state in found.items() if state in says]
        if open_:
            more = f" and {len(open_) - 3} more" * (len(open_) > 3)
            lines.append(f"not used of your chapter {number}: {', '.join(open_[:3])}{more}")
    return lines


def describe_owner(number: int) -> str:
    """Whose code `earlier(number)` gives: YOURS, THE_REFERENCES, or "yours but for 3.4 and 3.6"."""
    passed = _list_passed(number)
    if not passed:
        return THE_REFERENCES
    from chapters.runner.course import chapter

    others = [e.id for e in chapter(number).exercises if e.id not in passed]
    return f"{YOURS} but for {join_with_and(others)}" if others else YOURS


def find_owner(exercises: Iterable[str]) -> str:
    """Whose answers to these exercises `earlier` gives: YOURS, THE_REFERENCES or "partly yours"."""
    own = {one in _list_passed(int(one.split(".")[0])) for one in exercises}
    return {(True,): YOURS, (False,): THE_REFERENCES}.get(tuple(own), "partly yours")


def describe_owners(numbers: Iterable[int]) -> str:
    """One sentence on whose code is run."""
    found = {number: describe_owner(number) for number in numbers}
    learners = {number: said for number, said in found.items() if said != THE_REFERENCES}
    if not learners:
        return "The code is the reference's; an answer of yours takes its place once it passes its checks."
    if set(found.values()) == {YOURS}:
        return "All the code is yours."
    partly = [said.removeprefix(f"{YOURS} but for ") for said in learners.values() if said != YOURS]
    but = f", but for {join_with_and(partly)}" if partly else ""
    rest = "" if len(learners) == len(found) else "; the other chapters' is the reference's"
    return f"The code of chapter{'s' * (len(learners) > 1)} {join_with_and(map(str, learners))} is yours{but}{rest}."


def join_with_and(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
