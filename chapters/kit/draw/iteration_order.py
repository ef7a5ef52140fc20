"""The loops of a reduction beside its iterations, in the order in which a schedule visits them.

`visits({"nothing": func, "split": func, …})` runs each program. It draws the loops, with their values at each step, and
a cell per iteration: a row per sum, a column per step of the sum, and a first column for the init.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from tvm import tirx

from chapters.kit.draw.drawing import label, svg
from chapters.kit.draw.loop_nest import loop_nest
from chapters.kit.draw.stepper import Panel, Stepper, attributes, render_changing, step_attribute
from chapters.kit.draw.trace_stores import Store, execute, group_by_moment, make_ones

CELL, TOP, LEFT = 34, 16, 30  # pixels


@dataclass(frozen=True)
class Visit:
    """What happens at one moment. cells: (row, column) of the iterations, with column 0 for the init."""

    cells: tuple[tuple[int, int], ...]
    stores: tuple[Store, ...]


def trace_visits(func: tirx.PrimFunc) -> list[Visit]:
    """The moments of a program of row sums, in order: `func` has one argument (rows, columns) and a sum per row."""
    found = []
    for stores in group_by_moment(execute(func, make_ones(func))):
        cells = [(s.wrote.index[0], 0 if not s.reads else s.reads[-1].index[1] + 1) for s in stores]
        found.append(Visit(tuple(cells), tuple(stores)))
    return found


def visits(stages: Mapping[str, tirx.PrimFunc]) -> Stepper:
    """The picture: a panel per stage of a schedule."""
    panels = [_make_panel(name, func) for name, func in stages.items()]
    caption = "A cell is one run of the block; its number says when. The column <b>init</b> sets a sum to 0."
    title = "The loops of a schedule, and the order in which they visit the iterations"
    return Stepper(title, panels, "visits", start=6, asks="After", caption=caption)


def _make_panel(name: str, func: tirx.PrimFunc) -> Panel:
    order = trace_visits(func)
    shape = [int(n) for n in func.params[0].shape]
    blocks = {store.block for visit in order for store in visit.stores}

    def added(part: str) -> str:
        if part in blocks:
            runs = ["now" if visit.stores[0].block == part else "" for visit in order]
            return attributes(marks=["", *runs])
        return " " + render_changing(
            "span", "vi-value", ["", *(_value(part, visit) for visit in order)]
        )

    says = ["nothing has run yet", *map(_describe_visit, order)]
    body = f'<div class="vi">{loop_nest(func).boxes(added)}{_grid(name, order, shape)}</div>'
    return Panel(name, says, body)


def _describe_visit(visit: Visit) -> str:
    first, many = visit.stores[0], len(visit.cells)
    rows = _name_range([row for row, _ in visit.cells], "row")
    column = visit.cells[0][1]
    if not column:
        return f"{first.block} sets {'the sums' if many > 1 else 'the sum'} of {rows} to 0"
    together = f", {many} at once" if many > 1 else ""
    return f"{first.block} adds column {column - 1} of {rows}{together}"


def _name_range(numbers: Sequence[int], word: str) -> str:
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    return f"{word}s {min(numbers)} to {max(numbers)}"


def _value(name: str, visit: Visit) -> str:
    values = [store.loops[name] for store in visit.stores if name in store.loops]
    if not values:
        return ""
    return f"= {values[0]}" if min(values) == max(values) else f"= {min(values)} … {max(values)}"


def _grid(name: str, order: Sequence[Visit], shape: Sequence[int]) -> str:
    rows, columns = shape
    width, height = LEFT + CELL * (columns + 1) + 1, TOP + CELL * rows + 1

    def corner(cell: tuple[int, int]) -> tuple[int, int]:
        return LEFT + cell[1] * CELL, TOP + cell[0] * CELL

    def middle(visit: Visit) -> str:
        corners = np.array([corner(cell) for cell in visit.cells])
        x, y = corners.mean(axis=0) + CELL / 2
        return f"{x:g} {y:g}"

    shapes = [label(LEFT + CELL / 2, 11, "init")]
    shapes += [label(corner((0, k + 1))[0] + CELL / 2, 11, f"k {k}") for k in range(columns)]
    shapes += [label(0, corner((i, 0))[1] + 21, f"i {i}", "start") for i in range(rows)]
    numbers = []
    for number, visit in enumerate(order, 1):
        for cell in visit.cells:
            x, y = corner(cell)
            kind = "vi-cell" if cell[1] else "vi-cell vi-init"
            box = f'<rect class="{kind}" x="{x}" y="{y}" width="{CELL}" height="{CELL}"'
            shapes.append(f"{box}{step_attribute(number)}/>")
            numbered = f' class="strong"{step_attribute(number)}'
            numbers.append(label(x + CELL / 2, y + 21, number, more=numbered))
    for number, (one, other) in enumerate(pairwise(order), 2):
        line = f"M{middle(one)}L{middle(other)}"
        shapes.append(f'<path class="vi-path" d="{line}"{step_attribute(number)}/>')
    title = f"{name}: the order of {sum(len(v.cells) for v in order)} iterations and inits"
    drawn = svg("vi-grid", width, height, title, [*shapes, *numbers])
    return f'<div style="max-width:{width * 1.15:.0f}px">{drawn}</div>'
