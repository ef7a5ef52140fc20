"""A table: aligned text in a terminal, an HTML table in a notebook or on a page."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

_PREFIXES = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}


def format_duration(seconds: float) -> str:
    """`seconds` to three digits, in milliseconds, or in seconds if there is at least one."""
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{1e3 * seconds:.3g} ms"


def count_noun(number: int, noun: str) -> str:
    """ "1 row", "2 rows": a noun that takes an s, after its number."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_si(value: float, unit: str) -> str:
    """`value` with the unit's SI prefix and three digits: format_si(4.3e12, "B/s") is "4.3 TB/s"."""
    if value == 0:
        return f"0 {unit}".strip()
    power = 3 * math.floor(math.log10(abs(value)) / 3 + 1e-9)
    power = min(max(power, min(_PREFIXES)), max(_PREFIXES))
    number = f"{value / 10**power:.3g}"
    if abs(float(number)) >= 1000 and power < max(_PREFIXES):  # 999.9 was rounded up
        number, power = f"{float(number) / 1000:g}", power + 3
    return f"{float(number):g} {_PREFIXES[power]}{unit}".strip()


def format_change(old: object, new: object) -> str:
    """ "7 → 5", or one value if both are equal."""
    return str(old) if old == new else f"{old} → {new}"


class Html(str):
    """A cell that is HTML on a page; in a terminal its tags are left out."""


@dataclass(frozen=True)
class Table:
    """header: names of the columns. rows: one cell per column, shown as text. note: a sentence below the table.

    Integers are grouped, as in 1,048,576; a column of integers is aligned right. A cell may be `Html`. Raises
    ValueError if a row has another length than the header.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""

    def __post_init__(self):
        count = len(self.header)
        for row in self.rows:
            if len(row) != count:
                raise ValueError(f"A row has {len(row)} cells, the table {count} columns: {row!r}.")

    def __str__(self) -> str:
        cells = [list(self.header), *(list(map(as_text, row)) for row in self.rows)]
        rule = ["-" * max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = align([cells[0], rule, *cells[1:]], self._right())
        return "\n".join([*lines, *([self.note] if self.note else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return html_table(self.header, self.rows, self._right()) + note

    def _right(self) -> list[bool]:
        """For each column whether all its cells are integers."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return [bool(cells) and all(isinstance(cell, int) for cell in cells) for cells in columns]


def tabulate(items: Iterable, columns: Mapping[str, str | Callable], note: str = "") -> Table:
    """A table with one row per item. columns: heading -> what `fill_cell` makes the cell of."""
    rows = [tuple(fill_cell(item, cell) for cell in columns.values()) for item in items]
    return Table(tuple(columns), rows, note)


def fill_cell(item, cell: str | Callable) -> object:
    """`cell` of the item, a function of it or one of its keys; a dash if that raises KeyError."""
    try:
        return cell(item) if callable(cell) else item[cell]
    except KeyError:
        return "–"


def as_text(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Html):
        return html.unescape(re.sub(r"<[^>]*>", "", cell))
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def align(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """The rows as lines with aligned columns; `right` says for each column whether it is set to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(_pad, row, widths, right)).rstrip() for row in rows]


def _pad(cell: str, width: int, to_right: bool) -> str:
    return cell.rjust(width) if to_right else cell.ljust(width)


def html_table(
    header: Iterable[object], rows: Iterable[Iterable[object]], right: Sequence[bool]
) -> str:
    """An HTML table; `right` says for each column whether it is set to the right."""
    head = _render_row("th", header, right)
    body = "".join(_render_row("td", row, right) for row in rows)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _render_row(tag: str, cells: Iterable[object], right: Sequence[bool]) -> str:
    styles = [' style="text-align:right"' if to_right else "" for to_right in right]
    styled = zip(cells, styles, strict=True)
    inner = (f"<{tag}{style}>{_render_cell(cell)}</{tag}>" for cell, style in styled)
    return f"<tr>{''.join(inner)}</tr>"


def _render_cell(cell: object) -> str:
    return cell if isinstance(cell, Html) else html.escape(as_text(cell))
