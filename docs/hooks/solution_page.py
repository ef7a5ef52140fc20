"""The page that shows a chapter's reference, exercise by exercise, and then a second right design."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from fences import fenced

from chapters.toolkit.stub import BEGIN, END

_ANCHORS = re.compile(r"^\s*# --8<-- \[(?:start|end)[^\]]*\]\s*$")


@dataclass
class Chunk:
    """Consecutive lines of a file, `first` to `last` counted from 1, with the exercises solved in them."""

    first: int
    last: int
    exercises: list[str]


def solution_page(chapter) -> str:
    """The Markdown of the solution page of `chapter`."""
    out = [
        "---",
        f'title: "{chapter.number} · {chapter.title}: solution"',
        "---",
        "# Solution",
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
    out += reference(chapter.solution.read_text(encoding="utf-8"), chapter)
    second = chapter.solution_folder / "second_way.py"
    if second.exists():
        out += second_way(second)
    return "\n".join(out) + "\n"


def reference(text: str, chapter) -> list[str]:
    """The reference file: prose of its docstring, shared code, and one section an exercise."""
    lines = text.split("\n")
    prose, start = _docstring(text)
    out = [prose, ""] if prose else []
    seen: set[str] = set()
    for chunk in chunks(lines, start):
        for exercise_id in chunk.exercises:
            if exercise_id not in seen:
                exercise = chapter.exercise(exercise_id)
                out += [
                    f"## Exercise {exercise_id} · {exercise.title} {{ #{exercise.anchor} }}",
                    "",
                ]
                seen.add(exercise_id)
        code, marked = _shown(lines[chunk.first - 1 : chunk.last])
        if code:
            highlight = f' hl_lines="{" ".join(map(str, marked))}"' if marked else ""
            out += [fenced(code, f"python{highlight}"), ""]
    return out


def chunks(lines: list[str], start: int) -> list[Chunk]:
    """Split the file from line `start` on: each statement at top level that holds an exercise alone."""
    regions = _regions(lines)
    spans: list[Chunk] = []
    for first, last in _statements(lines, start):
        inside = [key for key, begin, end in regions if begin <= last and end >= first]
        if not inside:
            continue
        first = min(
            [first, *(b for k, b, e in regions if k in inside and b <= last and e >= first)]
        )
        last = max([last, *(e for k, b, e in regions if k in inside and b <= last and e >= first)])
        if spans and spans[-1].last >= first:
            spans[-1].last = max(last, spans[-1].last)
            spans[-1].exercises += [key for key in inside if key not in spans[-1].exercises]
        else:
            spans.append(Chunk(first, last, list(dict.fromkeys(inside))))
    out, at = [], start
    for span in spans:
        out += [Chunk(at, span.first - 1, []), span]
        at = span.last + 1
    return [c for c in [*out, Chunk(at, len(lines), [])] if c.first <= c.last]


def _regions(lines: list[str]) -> list[tuple[str, int, int]]:
    found, begun = [], ("", 0)
    for number, line in enumerate(lines, 1):
        begin, end = BEGIN.match(line), END.match(line)
        if begin:
            begun = (begin["id"], number)
        elif end and begun[0] == end["id"]:
            found.append((*begun, number))
    return found


def _statements(lines: list[str], start: int) -> list[tuple[int, int]]:
    """First and last line of every statement at top level, its decorators and comments included."""
    found = []
    for node in ast.parse("\n".join(lines)).body:
        decorators = [d.lineno for d in getattr(node, "decorator_list", [])]
        first = min([node.lineno, *decorators])
        while first > start and lines[first - 2].startswith("#"):
            first -= 1
        if first >= start:
            found.append((first, node.end_lineno))
    return found


def _shown(lines: list[str]) -> tuple[str, list[int]]:
    """The code without the region markers, and the numbers of the lines that stood between them."""
    kept: list[tuple[str, bool]] = []
    inside = False
    for line in lines:
        if BEGIN.match(line):
            inside = True
        elif END.match(line):
            inside = False
        elif not _ANCHORS.match(line):
            kept.append((line.rstrip(), inside))
    while kept and not kept[0][0]:
        kept.pop(0)
    while kept and not kept[-1][0]:
        kept.pop()
    marked = [number for number, (line, mine) in enumerate(kept, 1) if mine and line]
    return "\n".join(line for line, _ in kept), marked


def second_way(path: Path) -> list[str]:
    """The section on another right design: its module docstring as prose, then its code."""
    text = path.read_text(encoding="utf-8")
    prose, start = _docstring(text)
    code, _ = _shown(text.split("\n")[start - 1 :])
    return ["## A second way { #a-second-way }", "", prose, "", fenced(code), ""]


def _docstring(text: str) -> tuple[str, int]:
    """The module's docstring as Markdown, and the number of the first line after it."""
    tree = ast.parse(text)
    prose = ast.get_docstring(tree) or ""
    if not prose:
        return "", 1
    summary, _, rest = prose.partition("\n\n")
    return f"{summary}\n\n{textwrap.dedent(rest)}".strip(), tree.body[0].end_lineno + 1
