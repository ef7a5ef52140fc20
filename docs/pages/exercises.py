"""What the site adds to an exercise in a lesson.

Under the heading: its anchor and its facts. At its end: the function as the learner's file has it, the hints, which a
reader unfolds one by one, and a link to the solution.
"""

from __future__ import annotations

import ast
import re
from itertools import pairwise

from chapters.runner.course import PATHS
from chapters.runner.learner_file import make_stub
from chapters.runner.regions import BEGIN, END, split_lines
from docs.pages.course_map import PATH_NAMES
from docs.pages.fences import fence_code, mark_prose

HEADING = re.compile(r"^### Exercise (?P<id>\d+\.\d+) · (?P<title>.+?)\s*$")
_SECTION = re.compile(r"^#{1,3} ")


def complete_exercises(markdown: str, chapter) -> str:
    """The lesson's Markdown with every exercise completed from the chapter's facts.

    Raises CourseError for the heading of an exercise that the front matter lacks; a test compares the rest.
    """
    lines = markdown.split("\n")
    prose = mark_prose(lines)
    found = [(n, HEADING.match(line)) for n, line in enumerate(lines) if prose[n]]
    headings = [(number, match) for number, match in found if match]
    code = extract_stubs(make_stub(chapter))
    for number, match in reversed(headings):
        exercise = chapter.exercise(match["id"])
        end = number + 1
        while end < len(lines) and not (prose[end] and _SECTION.match(lines[end])):
            end += 1
        added = []  # a capstone has an empty file, and no hints
        if exercise.kind != "capstone":
            added = [*_show_stub(exercise, code[exercise.id]), *_nest_hints(chapter, exercise)]
        solution = f"[the solution of {exercise.id}](solution.md#{exercise.anchor})"
        when = f"When the check passes, compare with {solution}."
        lines[end:end] = ["", *added, "", when, "{ .exercise-solution }", ""]
        lines[number : number + 1] = [
            f"{lines[number].rstrip()} {{ #{exercise.anchor} .exercise }}",
            "",
            f'<span class="kind kind-{exercise.kind}">{exercise.kind}</span> {exercise.minutes} minutes'
            f"{_link_path(exercise)} · check it with `python -m chapters check {exercise.id}`",
            "{ .exercise-facts }",
            "",
        ]
    return "\n".join(lines)


def _link_path(exercise) -> str:
    return (
        ""
        if exercise.path == PATHS[-1]
        else f" · [{PATH_NAMES[exercise.path].lower()}](../../docs/paths.md)"
    )


def extract_stubs(stub: str) -> dict[str, str]:
    """{exercise: the functions of a learner's file that hold its regions}; a method stands below its class's line.

    A region that no function or class holds, as a capstone's, is left out.
    """
    lines, tree = split_lines(stub), ast.parse(stub)
    found: dict[str, list[str]] = {}
    for number, line in enumerate(lines, 1):
        if not (begin := BEGIN.match(line)):
            continue
        end = next(n for n in range(number, len(lines) + 1) if END.match(lines[n - 1]))
        around = [node for node in ast.walk(tree) if _encloses(node, number)]
        if not around:
            continue
        *outer, inner = sorted(around, key=lambda node: node.lineno)
        first = min([inner.lineno, *(decorator.lineno for decorator in inner.decorator_list)])
        texts = found.setdefault(begin["id"], [])
        for text in [
            *(lines[node.lineno - 1] for node in outer),
            "\n".join(lines[first - 1 : max(end, inner.end_lineno)]),
        ]:
            texts += [] if text in texts else [text]
    return {key: _join_code(texts) for key, texts in found.items()}


def _encloses(node: ast.AST, number: int) -> bool:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return isinstance(node, kinds) and node.lineno < number <= node.end_lineno


def _join_code(texts: list[str]) -> str:
    """Classes and functions one below the other: two lines apart, and a method one line from what precedes it."""
    out = texts[0]
    for before, text in pairwise(texts):
        method = text.startswith(" ")
        first = method and not before.startswith(" ")
        out += ("\n" if first else "\n\n" if method else "\n\n\n") + text
    return out


def _show_stub(exercise, code: str) -> list[str]:
    """What is in the learner's file. The code that a *fix* exercise mends is part of the task, so it is not folded."""
    mark = "???+" if exercise.kind == "fix" else "???"
    block = fence_code(code).split("\n")
    return [
        f'{mark} abstract start "In your file"',
        "",
        *(f"    {line}".rstrip() for line in block),
    ]


def _nest_hints(chapter, exercise) -> list[str]:
    lines: list[str] = []
    # each hint lies inside the one before, so a reader opens them in order
    for level, hint in enumerate(chapter.hints(exercise.id)):
        indent = "    " * level
        lines += ["", f'{indent}??? tip hint "Hint {level + 1}"', ""]
        lines += [f"{indent}    {line}".rstrip() for line in str(hint).strip().split("\n")]
    return lines
