"""What a module costs, as a table with one row per Relax function, and two such tables compared.

Chapter 1 fills the table; every later chapter shows `compare(before, after)` of its pass. Both print in a terminal and
render on a page.
"""

from __future__ import annotations

from dataclasses import dataclass

from chapters.kit.draw.table import align, format_change, html_table

UNITS = ("B", "kB", "MB", "GB", "TB")
HEADINGS = ["function", "launches", "read", "written"]
RIGHT = (False, True, True, True)  # which columns are aligned to the right


@dataclass(frozen=True)
class Row:
    """One function: kernel launches and the bytes they read and write; None if not counted."""

    function: str
    launches: int | None
    read: int | None = None
    written: int | None = None


class _TableView:
    """Shows its `cells` as a table: in a terminal, on a page and in a notebook."""

    def __str__(self) -> str:
        return "\n".join(align(self.cells(), RIGHT))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rows = self.cells()
        return html_table(head, rows, RIGHT)


@dataclass(frozen=True, repr=False)
class Scoreboard(_TableView):
    """The costs of a module. `rows`: one per Relax function. `calls`: calls by name, over all functions."""

    rows: tuple[Row, ...]
    calls: dict[str, int]

    def row(self, function: str) -> Row:
        """The row of `function`; KeyError naming the known ones if there is none."""
        for row in self.rows:
            if row.function == function:
                return row
        known = ", ".join(row.function for row in self.rows)
        raise KeyError(f"no Relax function {function!r}; the scoreboard has {known or 'none'}")

    @property
    def total(self) -> Row:
        """The sums over all functions. They describe the code, not one run: a run calls some of the functions."""
        return Row("total", *(_sum(self.rows, field) for field in ("launches", "read", "written")))

    def cells(self) -> list[list[str]]:
        """The table as texts, headings first; with a total if there is more than one function."""
        rows = [*self.rows, self.total] if len(self.rows) > 1 else self.rows
        return [HEADINGS, *([row.function, *_costs(row)] for row in rows)]


@dataclass(frozen=True, repr=False)
class Comparison(_TableView):
    """Two scoreboards, function by function. A function that is missing on one side costs nothing there."""

    before: Scoreboard
    after: Scoreboard

    def cells(self) -> list[list[str]]:
        """The table as texts: each cell is "before → after", or one value if they are equal."""
        names = dict.fromkeys(r.function for r in (*self.before.rows, *self.after.rows))
        pairs = [(name, _row(self.before, name), _row(self.after, name)) for name in names]
        if len(names) > 1:
            pairs.append(("total", self.before.total, self.after.total))
        rows = [[name, *map(format_change, _costs(old), _costs(new))] for name, old, new in pairs]
        return [HEADINGS, *rows]


def compare(before: Scoreboard, after: Scoreboard) -> Comparison:
    """What changed from `before` to `after`, as a table."""
    return Comparison(before, after)


def size(count: int | None) -> str:
    """A number of bytes in three digits: 532 B, 1.05 MB; "–" if it was not counted. 1 kB is 1000 B."""
    if count is None:
        return "–"
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:#.3g} {UNITS[unit]}".replace(". ", " ")


def _row(board: Scoreboard, name: str) -> Row:
    measured = any(row.read is not None for row in board.rows)
    absent = Row(name, 0, *((0, 0) if measured else (None, None)))
    return next((row for row in board.rows if row.function == name), absent)


def _sum(rows: tuple[Row, ...], field: str) -> int | None:
    values = [getattr(row, field) for row in rows]
    return None if None in values else sum(values)


def _costs(row: Row) -> list[str]:
    launches = "–" if row.launches is None else str(row.launches)
    return [launches, size(row.read), size(row.written)]
