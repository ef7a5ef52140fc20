"""Fenced code blocks in Markdown: where they begin and end, so that code is never taken for prose."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_OPEN = re.compile(r"^(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})(?P<info>[^`]*)$")


@dataclass(frozen=True)
class Fence:
    """One block: lines `first` (the opening) to `last` (the closing), counted from 0."""

    first: int
    last: int
    indent: str
    info: str
    body: tuple[str, ...]


def find_fences(lines: list[str]) -> list[Fence]:
    """All fenced blocks. One that is never closed reaches to the last line."""
    found = []
    number = 0
    while number < len(lines):
        opening = _OPEN.match(lines[number])
        if not opening:
            number += 1
            continue
        mark = opening["mark"]
        closing = re.compile(rf"^[ \t]*{re.escape(mark[0])}{{{len(mark)},}}[ \t]*$")
        last = number + 1
        while last < len(lines) and not closing.match(lines[last]):
            last += 1
        body = tuple(lines[number + 1 : last])
        found.append(Fence(number, last, opening["indent"], opening["info"].strip(), body))
        number = last + 1
    return found


def mark_prose(lines: list[str]) -> list[bool]:
    """For every line, whether it is outside all fenced blocks."""
    prose = [True] * len(lines)
    for fence in find_fences(lines):
        for number in range(fence.first, min(fence.last + 1, len(lines))):
            prose[number] = False
    return prose


def map_prose(markdown: str, change: Callable[[str], str]) -> str:
    """`markdown` with `change` applied to the prose: neither fenced blocks nor `code spans`."""
    lines = markdown.split("\n")
    prose = mark_prose(lines)
    for number, line in enumerate(lines):
        if prose[number]:
            parts = re.split(r"(`+[^`]+`+)", line)
            lines[number] = "".join(p if p.startswith("`") else change(p) for p in parts)
    return "\n".join(lines)


def fence_code(code: str, info: str = "python") -> str:
    """`code` as a fenced block whose fence is longer than any within it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", code)), default=2)
    mark = "`" * (longest + 1)
    return f"{mark}{info}\n{code}\n{mark}"
