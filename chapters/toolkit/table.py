"""A small table: aligned text in a terminal, an HTML table in a notebook or on a page."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def grouped(number: int) -> str:
    """`number` with thousands separated by commas, as the tables show bytes."""
    return f"{number:,}"


def duration(seconds: float) -> str:
    """`seconds` to three digits, in milliseconds, or in seconds from one on."""
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{1e3 * seconds:.3g} ms"


@dataclass(frozen=True)
class Table:
    """`header` names the columns; every row has one cell a column, shown as text.

    Integers are grouped and set to the right. Raises ValueError where a row has another length.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __post_init__(self):
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(
                    f"A row has {len(row)} cells, the table {len(self.header)} columns: {row!r}."
                )

    def __str__(self) -> str:
        lines = [list(self.header), *(list(map(_text, row)) for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        right = [self._right(i) for i in range(len(self.header))]
        out = [_line(lines[0], widths, right), "  ".join("-" * width for width in widths)]
        return "\n".join([*out, *(_line(line, widths, right) for line in lines[1:])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        right = [self._right(i) for i in range(len(self.header))]
        head = html_row("th", self.header, right)
        body = "".join(html_row("td", map(_text, row), right) for row in self.rows)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"

    def _right(self, column: int) -> bool:
        cells = [row[column] for row in self.rows]
        return bool(cells) and all(isinstance(cell, int) for cell in cells)


def _text(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return grouped(cell) if isinstance(cell, int) else str(cell)


def _line(cells: Iterable[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(parts).rstrip()


def html_row(tag: str, cells: Iterable[str], right: Sequence[bool]) -> str:
    """A row of an HTML table; `right` says for each column whether it is set to the right."""
    style = ' style="text-align:right"'
    inner = "".join(
        f"<{tag}{style if to_right else ''}>{html.escape(cell)}</{tag}>"
        for cell, to_right in zip(cells, right, strict=True)
    )
    return f"<tr>{inner}</tr>"
