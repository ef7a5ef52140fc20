"""What the glossary shows beneath a definition: a few lines of real IR, and the chapter that teaches the term."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from chapters.kit.ir.ir_diff import Listing, listing
from docs.pages.course_map import link_chapter

LINES = 6  # more would be an example, and the chapters have those
WIDTH = 88  # characters that fit in a page's column
_TYPE = re.compile(r"^(\s*\w+): .*? = ")


@dataclass(frozen=True)
class Entry:
    """text: 1 to LINES lines of IR or of printed output, else ValueError. chapter: the number of its chapter."""

    text: str
    chapter: int

    def __post_init__(self) -> None:
        count = len(self.text.splitlines())
        if not 1 <= count <= LINES:
            raise ValueError(f"An entry shows 1 to {LINES} lines; this has {count}:\n{self.text}")

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        taught = f"<p><small>Taught in chapter {link_chapter(self.chapter)}.</small></p>"
        return Listing(self.text)._repr_html_() + taught


def cut(
    ir: object, start: str, count: int = 1, *, skip: tuple[str, ...] = (), short: bool = False
) -> str:
    """`count` lines of the listing of `ir` from the first that contains `start`, moved to the left margin.

    skip: lines that contain one of these are left out. short: "…" replaces a variable's type.
    A line longer than WIDTH ends in "…". Raises ValueError if no line contains `start`.
    """
    lines = [line for line in listing(ir).splitlines() if not any(word in line for word in skip)]
    first = next((number for number, line in enumerate(lines) if start in line), None)
    if first is None:
        raise ValueError(f"No line of the listing holds {start!r}.")
    kept = textwrap.dedent("\n".join(lines[first : first + count])).rstrip().splitlines()
    return "\n".join(_fit_line(line, short) for line in kept)


def find_lines(ir: object, *words: str, count: int = LINES, short: bool = False) -> str:
    """The first `count` lines of the listing of `ir` that contain any of `words`, without indentation, cut like `cut`.

    Raises ValueError if there is none.
    """
    lines = [line.strip() for line in listing(ir).splitlines()]
    found = [line for line in lines if any(word in line for word in words)]
    if not found:
        raise ValueError(f"No line of the listing holds any of {words}.")
    return "\n".join(_fit_line(line, short) for line in found[:count])


def _fit_line(line: str, short: bool) -> str:
    if short:
        line = _TYPE.sub(r"\1: … = ", line)
    return line if len(line) <= WIDTH else line[: WIDTH - 2].rstrip() + " …"
