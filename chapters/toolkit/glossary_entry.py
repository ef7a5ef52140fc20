"""What a term of the glossary shows beneath its definition: a few lines of real IR, and the chapter that teaches it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from chapters.toolkit.course_map import chapter_link
from chapters.toolkit.ir_diff import Listing, listing

LINES = 6  # more would be an example, and the chapters have those


@dataclass(frozen=True)
class Entry:
    """`text`: at most LINES lines of IR or of what a call printed. `chapter`: the number of the one that teaches it."""

    text: str
    chapter: int

    def __post_init__(self) -> None:
        count = len(self.text.splitlines())
        if not 1 <= count <= LINES:
            raise ValueError(f"A glossary entry shows 1 to {LINES} lines, and this has {count}:\n{self.text}")

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"{Listing(self.text)._repr_html_()}<p>Taught in chapter {chapter_link(self.chapter)}.</p>"


def cut(ir: object, start: str, count: int = 1, *, skip: tuple[str, ...] = (), width: int = 100) -> str:
    """`count` lines of the listing of `ir` from the first that holds `start`, moved to the left margin.

    skip: lines that hold one of these are left out. width: a longer line ends in "…".
    Raises ValueError if no line holds `start`.
    """
    lines = [line for line in listing(ir).splitlines() if not any(word in line for word in skip)]
    first = next((number for number, line in enumerate(lines) if start in line), None)
    if first is None:
        raise ValueError(f"No line of the listing holds {start!r}.")
    kept = textwrap.dedent("\n".join(lines[first : first + count])).rstrip().splitlines()
    return "\n".join(line if len(line) <= width else line[: width - 2].rstrip() + " …" for line in kept)


def lines_with(ir: object, *words: str, count: int = LINES, width: int = 100) -> str:
    """The first `count` lines of the listing of `ir` that hold any of `words`, cut like `cut`."""
    found = [line.strip() for line in listing(ir).splitlines() if any(word in line for word in words)]
    if not found:
        raise ValueError(f"No line of the listing holds any of {words}.")
    return "\n".join(line if len(line) <= width else line[: width - 2].rstrip() + " …" for line in found[:count])
