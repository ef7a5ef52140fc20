"""The page that shows a chapter's reference, exercise by exercise, and then another correct design."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from chapters.runner.regions import BEGIN, END
from docs.pages.fences import fence_code


@dataclass
class Chunk:
    """Consecutive lines of a file, `first` to `last` counted from 1, with the exercises solved in them."""

    first: int
    last: int
    exercises: list[str]


def make_solution_page(chapter) -> str:
    """The Markdown of the solution page of `chapter`."""
    out = [
        "---",
        f'title: "{chapter.number} · {chapter.title}: solution"',
        "---",
        f"# Solution {chapter.number}",
        "",
        '!!! warning "Solve first"',
        "",
        "    Reading a solution feels like understanding it. Write your own, use the hints of the",
        f"    [lesson](lesson.md), and compare when `python -m chapters check {chapter.number}` passes.",
        "",
        f"The reference for [chapter {chapter.number} · {chapter.title}](lesson.md), "
        f"`solutions/{chapter.slug}/{chapter.file}`. The lines you were asked to write are highlighted.",
        "",
    ]
    out += render_reference(chapter.solution.read_text(encoding="utf-8"), chapter)
    out += render_second_way(chapter.solution_folder / "second_way.py")
    return "\n".join(out) + "\n"


def render_reference(text: str, chapter) -> list[str]:
    """The reference file: prose of its docstring, shared code, and one section per exercise."""
    lines = text.split("\n")
    prose, start = _read_docstring(text)
    out = [prose, ""] if prose else []
    seen: set[str] = set()
    for chunk in split_chunks(lines, start):
        for exercise_id in chunk.exercises:
            if exercise_id not in seen:
                exercise = chapter.exercise(exercise_id)
                heading = f"## Exercise {exercise_id} · {exercise.title}"
                out += [f"{heading} {{ #{exercise.anchor} }}", ""]
                task = f"[Task and hints](lesson.md#{exercise.anchor})"
                out += [
                    f"{task} · {exercise.kind}, {exercise.minutes} minutes",
                    "{ .exercise-facts }",
                    "",
                ]
                seen.add(exercise_id)
        code, marked = _strip_markers(lines[chunk.first - 1 : chunk.last])
        if code:
            highlight = f' hl_lines="{" ".join(map(str, marked))}"' if marked else ""
            out += [fence_code(code, f"python{highlight}"), ""]
    return out


def split_chunks(lines: list[str], start: int) -> list[Chunk]:
    """Split the file from line `start` on; a top-level statement with an exercise is a chunk for itself."""
    out: list[Chunk] = []
    open_regions = 0
    for first, end in pairwise([*_find_starts(lines, start), len(lines) + 1]):
        begun = [match["id"] for line in lines[first - 1 : end - 1] if (match := BEGIN.match(line))]
        together = open_regions or (out and not begun and not out[-1].exercises)
        if together:
            out[-1].last = end - 1
            out[-1].exercises += [key for key in begun if key not in out[-1].exercises]
        else:
            out.append(Chunk(first, end - 1, list(dict.fromkeys(begun))))
        open_regions += len(begun) - sum(bool(END.match(x)) for x in lines[first - 1 : end - 1])
    return out


def _find_starts(lines: list[str], start: int) -> list[int]:
    """`start`, and the first line of every statement at top level, its decorators and comments included."""
    found = [start]
    for node in ast.parse("\n".join(lines)).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        while first > start and re.match(r"#(?! END)|$", lines[first - 2]):
            first -= 1
        if first > found[-1]:
            found.append(first)
    return found


def _strip_markers(lines: list[str]) -> tuple[str, list[int]]:
    """The code without the region markers, and the numbers of the lines between them."""
    kept: list[tuple[str, bool]] = []
    inside = False
    for line in lines:
        if BEGIN.match(line):
            inside = True
        elif END.match(line):
            inside = False
        else:
            kept.append((line.rstrip(), inside))
    while kept and not kept[0][0]:
        kept.pop(0)
    while kept and not kept[-1][0]:
        kept.pop()
    marked = [number for number, (line, in_region) in enumerate(kept, 1) if in_region and line]
    return "\n".join(line for line, _ in kept), marked


def render_second_way(path: Path) -> list[str]:
    """The section on another correct design: its module docstring as prose, then its code."""
    text = path.read_text(encoding="utf-8")
    prose, start = _read_docstring(text)
    code, _ = _strip_markers(text.split("\n")[start - 1 :])
    return ["## A second way { #a-second-way }", "", prose, "", fence_code(code), ""]


def _read_docstring(text: str) -> tuple[str, int]:
    """The module's docstring as Markdown, and the number of the first line after it."""
    tree = ast.parse(text)
    prose = ast.get_docstring(tree)
    return (prose, tree.body[0].end_lineno + 1) if prose else ("", 1)
