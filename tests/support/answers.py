"""Answers as files: a reference with a catalogued mistake or another design in it, or changed by a test."""

from __future__ import annotations

import ast
from pathlib import Path

from chapters.runner.catalogue import Design, find_mistake
from chapters.runner.course import Chapter
from chapters.runner.loading import Answer, load
from chapters.runner.regions import BEGIN, END


def write_answer(folder: Path, chapter: Chapter, text: str) -> Path:
    """A file with the learner's file's name that holds `text`."""
    path = folder / chapter.slug / chapter.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def mistaken(folder: Path, chapter: Chapter, name: str) -> Answer:
    """The reference with the catalogued mistake called `name`, loaded from a file in `folder`."""
    return load(write_answer(folder, chapter, find_mistake(chapter, name).text()))


def may_differ(chapter: Chapter, design: Design | Path) -> list[str]:
    """The exercises whose checks a design can change: those it rewrites, and those that use what it rewrites.

    design: a catalogued one, or a file that defines some of the reference's names anew.
    """
    text = chapter.solution.read_text(encoding="utf-8")
    tree = ast.parse(text)
    spans: list[tuple[str, range]] = []  # the exercise and the lines of each region
    for number, line in enumerate(text.split("\n"), 1):
        if match := BEGIN.match(line):
            begin = match["id"], number
        elif END.match(line):
            spans.append((begin[0], range(begin[1], number)))
    uses: dict[str, set[str]] = {}
    holds: dict[str, set[str]] = {}
    for node in tree.body:
        for name in _defined(node):
            uses[name] = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            span = range(node.lineno, node.end_lineno + 1)
            holds[name] = {exercise for exercise, lines in spans if set(span) & set(lines)}
    if isinstance(design, Path):
        new = ast.parse(design.read_text(encoding="utf-8"))
        changed = {name for node in new.body for name in _defined(node)} & set(uses)
    else:
        changed = {name for name, held in holds.items() if held & set(design.changes)}
    reached = changed
    while more := {name for name, used in uses.items() if used & reached} - reached:
        reached = reached | more
    return [e.id for e in chapter.exercises if any(e.id in holds[name] for name in reached)]


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []
