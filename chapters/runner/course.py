"""What the course consists of: its chapters and their exercises, read from the lessons' front matter.

A chapter's facts are written once, in the YAML block at the top of `chapters/chNN_name/lesson.md`. The site, the
learner's command, the checks and the tests all read them through this file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
# the loaders in C are ten times as fast; BASE leaves all values text
BASE = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
KINDS = ("write", "fix", "break", "predict", "measure", "choose", "capstone")
PATHS = ("day", "course", "all")  # each holds the exercises of those before it


class CourseError(Exception):
    """Something the reader asked for is not in the course; the message says what is."""


@dataclass(frozen=True)
class Exercise:
    """One exercise: `id` is "2.1", `kind` one of KINDS, `name` the function or class the learner writes.

    A *fix* starts from a wrong answer, a *capstone* from an empty file. `path` is the shortest of PATHS that has it.
    """

    id: str
    kind: str
    minutes: int
    title: str
    name: str
    chapter: int
    path: str = "all"
    broken: str = ""  # a fix exercise starts from this mistake of solutions/chNN_…/mistakes.yml

    @property
    def anchor(self) -> str:
        return "exercise-" + self.id.replace(".", "-")


@dataclass(frozen=True)
class Chapter:
    """One chapter's facts. `reading` has minutes for each of PATHS, labs included; `needs` are chapter numbers."""

    number: int
    folder: Path
    title: str
    reading: dict[str, int] = field(hash=False)
    needs: tuple[int, ...]
    gpu: str
    file: str
    exercises: tuple[Exercise, ...]
    root: Path = ROOT

    @property
    def slug(self) -> str:
        return self.folder.name

    @property
    def short(self) -> str:
        return f"ch{self.number:02d}"

    @property
    def checks(self) -> Path:
        """The file with the functions that judge this chapter's exercises."""
        return self.folder / "checks.py"

    @property
    def lesson(self) -> Path:
        return self.folder / "lesson.md"

    @property
    def is_capstone(self) -> bool:
        """Whether all it asks for is a capstone; it then has no lab, no quiz and no hints."""
        return all(exercise.kind == "capstone" for exercise in self.exercises)

    @property
    def stub(self) -> Path:
        """The file the learner edits."""
        return self.folder / self.file

    @property
    def solution_folder(self) -> Path:
        return self.root / "solutions" / self.slug

    @property
    def solution(self) -> Path:
        """The reference the stub is generated from."""
        return self.solution_folder / self.file

    def exercises_on(self, path: str) -> tuple[Exercise, ...]:
        """The exercises that belong to one of PATHS."""
        return tuple(e for e in self.exercises if PATHS.index(e.path) <= PATHS.index(path))

    def minutes_on(self, path: str) -> int:
        """Minutes of reading and of exercises for one of PATHS."""
        return self.reading[path] + sum(e.minutes for e in self.exercises_on(path))

    @property
    def minutes(self) -> int:
        return self.minutes_on("all")

    def exercise(self, key: str) -> Exercise:
        for exercise in self.exercises:
            if exercise.id == key:
                return exercise
        known = ", ".join(e.id for e in self.exercises)
        raise CourseError(f"There is no exercise {key} in chapter {self.number}; it has {known}.")

    def hints(self, exercise_id: str) -> list[str]:
        """The graded hints of an exercise, from a question to almost the line. Markdown."""
        return read_yaml(self.folder / "hints.yml").get(exercise_id, [])


def read_yaml(path: Path) -> dict:
    """The mapping in a YAML file, values as text; {} without a file. CourseError, with the line, if it is not YAML."""
    if not path.exists():
        return {}
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=BASE) or {}
    except yaml.YAMLError as error:
        spot = getattr(error, "problem_mark", None)
        line = f", line {spot.line + 1}," if spot else ""
        said = getattr(error, "problem", error)
        raise CourseError(f"{path.parent.name}/{path.name}{line} is not YAML: {said}.") from None


def front_matter(lesson: Path) -> dict:
    """The YAML block between the two `---` lines at the top of `lesson`."""
    match = re.match(r"---\n(.*?)\n---\n", lesson.read_text(encoding="utf-8"), re.DOTALL)
    if not match:
        raise CourseError(f"{lesson} has no front matter: it must begin with a `---` block.")
    try:
        return yaml.load(match.group(1), Loader=SAFE) or {}
    except yaml.YAMLError as error:
        spot = getattr(error, "problem_mark", None)
        line = f" (line {spot.line + 2})" if spot else ""
        told = f"The front matter of {lesson} is not YAML{line}; quote texts with commas."
        raise CourseError(told) from None


def _read_chapter(folder: Path, root: Path) -> Chapter:
    lesson, number = folder / "lesson.md", int(folder.name[2:4])
    facts = front_matter(lesson)
    missing = {"title", "reading", "needs", "gpu", "file", "exercises"} - set(facts)
    if missing:
        raise CourseError(f"The front matter of {lesson} lacks {', '.join(sorted(missing))}.")
    try:
        exercises = tuple(Exercise(**e, chapter=number) for e in facts["exercises"])
        needs = tuple(facts["needs"])
        reading = {"day": 0, "course": facts["reading"]["all"], **facts["reading"]}
    except (TypeError, KeyError) as error:
        raise CourseError(
            f"The front matter of {lesson} cannot be used ({error}). `needs` is a list of chapter numbers, and "
            "`reading` has minutes for `all`; an exercise has id, kind, minutes, title and name."
        ) from None
    gpu = facts["gpu"] or "no"  # YAML reads a bare no as False
    title, file = facts["title"], facts["file"]
    return Chapter(number, folder, title, reading, needs, gpu, file, exercises, root)


@cache
def chapters(root: Path = ROOT) -> list[Chapter]:
    """All chapters in order: the folders `chapters/chNN_*` that have a lesson."""
    found = (root / "chapters").glob("ch[0-9][0-9]_*")
    folders = sorted(p for p in found if p.is_dir() and re.fullmatch(r"ch\d\d_\w+", p.name))
    return [_read_chapter(folder, root) for folder in folders if (folder / "lesson.md").exists()]


def chapter(number: int | str) -> Chapter:
    """The chapter called `number`: 2, "2", "02", "ch02" or its folder's name.

    Raises CourseError with the known numbers if there is none.
    """
    text = str(number).strip().rstrip("/\\")
    match = re.fullmatch(r"(?:ch)?(\d{1,3})(?:_\w+)?", Path(text).name)
    for candidate in chapters():
        if match and candidate.number == int(match.group(1)):
            return candidate
    known = ", ".join(str(c.number) for c in chapters())
    raise CourseError(f"There is no chapter {text!r}; the course has chapters {known}.")


def exercise(key: str) -> tuple[Chapter, Exercise]:
    """The chapter and exercise that `key` ("2.1", "02.1") names; CourseError if none."""
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", str(key).strip())
    if not match:
        raise CourseError(f"{key!r} is not an exercise number: write chapter.exercise, as in 2.1.")
    home = chapter(match.group(1))
    return home, home.exercise(f"{home.number}.{int(match.group(2))}")


def select(name: str | None) -> list[tuple[Chapter, Exercise]]:
    """The exercises that `name` selects: "2.1" one exercise, "2" those of a chapter, None all of them."""
    if name is None:
        return [(c, e) for c in chapters() for e in c.exercises]
    if "." in str(name):
        return [exercise(name)]
    home = chapter(name)
    return [(home, e) for e in home.exercises]
