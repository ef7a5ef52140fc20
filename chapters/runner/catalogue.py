"""A chapter's catalogued mistakes and its other correct designs: the reference with some lines of a region changed.

Beside each reference, `mistakes.yml` holds the mistakes by exercise, and `designs.yml` the designs by name. A change is
either `region`, the whole new text of an exercise's first region, or `patch`, in the notation of a diff:

    patch: |2
      -return a + b
      +return a - b

The lines that begin with `-` or a space must occur exactly once, one after the other, in the exercise's regions; the
lines that begin with `+` or a space replace them. A line `@@` separates two such places. Indentation is relative: that
of the place found is added. (`|2` tells YAML where the lines begin, as the first may begin with a space.) Both files
are read without running anything. An exercise's own `read` is that of all its mistakes that have none.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from chapters.runner.course import Chapter, CourseError, read_yaml
from chapters.runner.regions import regions, with_regions

Change = dict[str, str]  # has "patch" or "region", a text


@dataclass(frozen=True, eq=False)
class Mistake:
    """A wrong answer to one exercise. what completes “This looks like: …”; why explains; read says where to read on."""

    name: str
    chapter: Chapter
    exercise: str
    what: str
    why: str
    read: str
    change: Change

    def text(self) -> str:
        """The reference with this mistake in it."""
        return apply_changes(self.chapter, self.name, {self.exercise: self.change})


@dataclass(frozen=True, eq=False)
class Design:
    """Another correct answer: the reference with the regions of some exercises written differently."""

    name: str
    chapter: Chapter
    says: str
    changes: dict[str, Change]  # by exercise

    def text(self) -> str:
        """The reference with this design in it."""
        return apply_changes(self.chapter, self.name, self.changes)


@cache
def mistakes(chapter: Chapter) -> tuple[Mistake, ...]:
    """The catalogued mistakes of a chapter, in the order of their file. CourseError where an entry is not complete."""
    path = chapter.solution_folder / "mistakes.yml"
    found = []
    for exercise, entries in read_yaml(path).items():
        chapter.exercise(exercise)
        if not isinstance(entries, dict):
            raise CourseError(f"{path.parent.name}/{path.name}: {exercise} must name its mistakes.")
        usual = {"read": entries.pop("read")} if "read" in entries else {}
        for name, own in entries.items():
            entry = usual | own if isinstance(own, dict) else own
            _check_keys(path, name, entry, {"what", "why", "read"}, {"patch", "region"})
            what, why, read = entry["what"], entry["why"], _name_section(chapter, entry["read"])
            found.append(Mistake(name, chapter, exercise, what, why, read, change=entry))
    return tuple(found)


def mistakes_of(chapter: Chapter, exercise: str) -> list[Mistake]:
    """The catalogued mistakes of one exercise."""
    return [one for one in mistakes(chapter) if one.exercise == exercise]


def find_mistake(chapter: Chapter, name: str) -> Mistake:
    """The catalogued mistake called `name`. CourseError if there is none."""
    for one in mistakes(chapter):
        if one.name == name:
            return one
    raise CourseError(f"solutions/{chapter.slug}/mistakes.yml has no mistake {name!r}.")


@cache
def designs(chapter: Chapter) -> tuple[Design, ...]:
    """The other correct designs of a chapter. CourseError where an entry is not complete."""
    path = chapter.solution_folder / "designs.yml"
    found = []
    for name, entry in read_yaml(path).items():
        _check_keys(path, name, entry, {"says", "changes"}, set())
        found.append(Design(name, chapter, entry["says"], entry["changes"]))
    return tuple(found)


def _check_keys(path: Path, name: str, entry: dict, all_of: set[str], one_of: set[str]) -> None:
    found = set(entry) if isinstance(entry, dict) else set()
    choice = f" and one of {', '.join(sorted(one_of))}" if one_of else ""
    if found - one_of != all_of or len(found & one_of) != bool(one_of):
        raise CourseError(
            f"{path.parent.name}/{path.name}: {name} must have {', '.join(sorted(all_of))}{choice}; "
            f"it has {sorted(found)}."
        )


def _name_section(chapter: Chapter, read: str) -> str:
    """Where to read on; a bare heading is one of the chapter's own lesson."""
    return read if ".md" in read else f"chapters/{chapter.slug}/lesson.md, “{read}”"


# --- splicing -------------------------------------------------------------------------------------


def apply_changes(chapter: Chapter, name: str, changes: dict[str, Change]) -> str:
    """The reference of `chapter` with `changes` made to the regions of some exercises.

    Raises CourseError, naming `name`, where a change does not fit the reference.
    """
    reference = chapter.solution.read_text(encoding="utf-8")
    bodies = regions(reference)
    new = {}
    for exercise, change in changes.items():
        try:
            if "region" in change:
                new[exercise] = _replace_region(bodies[exercise], change["region"])
            else:
                new[exercise] = _apply_patch(bodies[exercise], change["patch"])
        except (KeyError, ValueError) as error:
            where = f"solutions/{chapter.slug}: {name}"
            raise CourseError(
                f"{where} does not fit the reference of {exercise}: {error}"
            ) from None
    return with_regions(reference, new)


def _replace_region(bodies: list[str], text: str) -> list[str]:
    first = next((line for line in bodies[0].split("\n") if line.strip()), "")
    return [textwrap.indent(text.rstrip("\n"), _indent(first)), *bodies[1:]]


def _apply_patch(bodies: list[str], patch: str) -> list[str]:
    """`bodies` with every place of `patch` changed. ValueError if one is not found exactly once."""
    bodies = list(bodies)
    for part in _split_patch(patch):
        old = [line[1:] for line in part if line[:1] != "+"]
        new = [line[1:] for line in part if line[:1] != "-"]
        places = [(n, at) for n, body in enumerate(bodies) for at in _find_places(body, old)]
        if len(places) != 1:
            shown = " / ".join(line.strip() for line in old)
            raise ValueError(f"“{shown}” occurs {len(places)} times; it must occur once")
        number, (first, indent) = places[0]
        lines = bodies[number].split("\n")
        lines[first : first + len(old)] = [(indent + line) if line.strip() else "" for line in new]
        bodies[number] = "\n".join(lines)
    return bodies


def _split_patch(patch: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for line in patch.rstrip("\n").split("\n"):
        if line.startswith("@@"):
            parts.append([])
        elif line[:1] in ("+", "-", " ", ""):
            parts[-1].append(line or " ")
        else:
            raise ValueError(f"a line of a patch begins with -, + or a space: {line!r}")
    return parts


def _find_places(body: str, old: list[str]) -> list[tuple[int, str]]:
    """The places of the lines `old` in `body`, all indented by the same amount: (first line, added indentation)."""
    lines = body.split("\n")
    found = []
    for first in range(len(lines) - len(old) + 1):
        here = lines[first : first + len(old)]
        extra = len(_indent(here[0])) - len(_indent(old[0]))
        indent = " " * max(extra, 0)
        moved = [indent + line if line.strip() else "" for line in old]
        if extra >= 0 and moved == [line if line.strip() else "" for line in here]:
            found.append((first, indent))
    return found


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
