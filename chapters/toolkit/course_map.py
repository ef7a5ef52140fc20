"""The chapters as tables for the site's pages: what there is, how long it takes, where it lies.

Everything is read from the lessons' front matter. A table shows itself on a page and prints as text in a terminal.
"""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import dataclass

from chapters.toolkit.course import Chapter, chapters

LAST = 9  # the number of the last chapter that is planned


@dataclass(frozen=True)
class Table:
    """`head` and `rows` of cells. A cell may hold HTML; `note` is a sentence beneath."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def __str__(self) -> str:
        lines = [" | ".join(_text(cell) for cell in row) for row in (self.head, *self.rows)]
        return "\n".join([*lines, *([_text(self.note)] if self.note else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{cell}</th>" for cell in self.head)
        body = "".join(
            "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in self.rows
        )
        note = f"<p>{self.note}</p>" if self.note else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _text(cell: str) -> str:
    """`cell` without its tags."""
    kept, inside = [], False
    for sign in cell:
        if sign in "<>":
            inside = sign == "<"
        elif not inside:
            kept.append(sign)
    return html.unescape("".join(kept))


def chapter_link(number: int) -> str:
    """A link to chapter `number` from a page beside the site's index, as HTML; plain words if it does not exist."""
    for chapter in chapters():
        if chapter.number == number:
            title = html.escape(chapter.title)
            return f'<a href="chapters/{chapter.slug}/index.html">{number} · {title}</a>'
    return f"{number} (being written)"


def unwritten() -> str:
    """Which planned chapters do not exist yet, as a sentence; "" if all do."""
    there = {chapter.number for chapter in chapters()}
    missing = [number for number in range(LAST + 1) if number not in there]
    if not missing:
        return ""
    if len(missing) == 1:
        return f"Chapter {missing[0]} is being written."
    if missing == list(range(missing[0], missing[-1] + 1)):
        return f"Chapters {missing[0]} to {missing[-1]} are being written."
    return f"Chapters {', '.join(map(str, missing[:-1]))} and {missing[-1]} are being written."


def hours(minutes: int) -> str:
    """`minutes` as hours and minutes: 100 is "1:40"."""
    return f"{minutes // 60}:{minutes % 60:02d}"


def course_map() -> Table:
    """A row a chapter: what it is called, its minutes, its exercises by kind, whether a GPU is of use."""
    rows = [
        (
            chapter_link(c.number),
            str(c.minutes),
            _kinds(c),
            "no" if c.gpu in ("no", False) else str(c.gpu),
        )
        for c in chapters()
    ]
    total = sum(c.minutes for c in chapters())
    note = f"In all: {hours(total)} h. {unwritten()}".strip()
    return Table(("Chapter", "Minutes", "Exercises", "GPU"), tuple(rows), note)


def _kinds(chapter: Chapter) -> str:
    counted = Counter(exercise.kind for exercise in chapter.exercises)
    return f"{len(chapter.exercises)}: " + ", ".join(f"{n} {kind}" for kind, n in counted.items())


def schedule() -> Table:
    """A row a chapter: minutes of reading and of exercises, and the time from the start of the course."""
    rows, at = [], 0
    for chapter in chapters():
        exercises = sum(exercise.minutes for exercise in chapter.exercises)
        reading = chapter.minutes - exercises
        span = f"{hours(at)} to {hours(at + chapter.minutes)}"
        rows.append(
            (chapter_link(chapter.number), str(reading), str(exercises), str(chapter.minutes), span)
        )
        at += chapter.minutes
    return Table(
        ("Chapter", "Reading and lab", "Exercises", "Together", "From the start"),
        tuple(rows),
        unwritten(),
    )
