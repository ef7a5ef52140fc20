"""The order in which a kernel reads a buffer, found by running its loops in Python, and drawn on the buffer's elements.

`read_order(func, "w", title)` notes each element of the named buffer that a PrimFunc with small constant sizes reads.
It compiles nothing, so the picture shows the loops as the IR has them.
"""

from __future__ import annotations

import html
import itertools
import math
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.ir import TensorLoad

from chapters.kit.draw.drawing import Drawing, label, side_by_side, svg
from chapters.kit.draw.trace_stores import execute, make_ones
from chapters.kit.ir.tensor_ir import nodes

__all__ = ["ReadOrder", "read_order", "side_by_side"]

MOST = 400  # elements; a picture of more would be illegible
CELL = 34  # pixels
STYLE = """
.read-orders{display:flex;flex-wrap:wrap;gap:2em;align-items:flex-start;margin:1.2em 0}
.read-orders figure{margin:0}
.ro{display:block;width:100%}
.read-orders figcaption{font-size:.75rem;max-width:none;margin:.4em 0 0;font-style:normal}
.ro text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:11px;fill:currentColor;
stroke:var(--md-default-bg-color,Canvas);stroke-width:3px;paint-order:stroke}
.ro rect{fill:rgba(128,128,128,.10);stroke:currentColor;stroke-opacity:.4}
.ro .read{fill:rgba(222,128,30,.22);stroke:#c96f12;stroke-opacity:1}
.ro path{fill:none;stroke:#c96f12;stroke-width:1.6;stroke-opacity:.8}
"""


@dataclass(frozen=True, repr=False)
class ReadOrder(Drawing):
    """The elements of `buffer` that a kernel reads, in order. reads: flat indices into an array of shape `shape`."""

    STYLE, GROUP = STYLE, "read-orders"

    title: str
    buffer: str
    shape: tuple[int, ...]
    reads: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """The step from each read to the next, in elements."""
        return tuple(b - a for a, b in itertools.pairwise(self.reads))

    @property
    def caption(self) -> str:
        """The title, and the smallest four different strides."""
        steps = sorted(set(self.strides))
        told = ", ".join(map(str, steps[:4]))
        plural = "" if steps == [1] else "s"
        return f"{self.title}: {self.buffer} read with steps of {told} element{plural}"

    @property
    def order(self) -> dict[int, int]:
        """Element -> the number of its last read."""
        return {flat: number for number, flat in enumerate(self.reads)}

    def __str__(self) -> str:
        columns, order = self.shape[-1], self.order
        cells = [str(order.get(flat, "·")).rjust(3) for flat in range(math.prod(self.shape))]
        rows = [" ".join(cells[r : r + columns]) for r in range(0, len(cells), columns)]
        return "\n".join([self.caption, *rows])

    def figure(self) -> str:
        """A cell per element, with the reads numbered and joined by a line; the style sheet is not included."""
        columns, size, order = self.shape[-1], math.prod(self.shape), self.order
        corners = [(flat % columns * CELL + 1, flat // columns * CELL + 1) for flat in range(size)]
        shapes = []
        for flat, (x, y) in enumerate(corners):
            mark = ' class="read"' if flat in order else ""
            shapes.append(f'<rect{mark} x="{x}" y="{y}" width="{CELL}" height="{CELL}"/>')
        middle = [(x + CELL / 2, y + CELL / 2) for x, y in map(corners.__getitem__, self.reads)]
        shapes.append('<path d="M' + "L".join(f"{x:.0f} {y:.0f}" for x, y in middle) + '"/>')
        for flat, number in order.items():
            x, y = corners[flat]
            shapes.append(label(x + 9, y + 12, number))
        width, height = columns * CELL + 2, size // columns * CELL + 2
        drawn = svg("ro", width, height, self.caption, shapes)
        place = f"flex:1 1 {width}px;max-width:{width}px"
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>"
        return f'<figure style="{place}">{drawn}{caption}</figure>'


def read_order(func: tirx.PrimFunc, buffer: str, title: str, count: int | None = None) -> ReadOrder:
    """The order in which the first block of `func` that reads `buffer` reads it. count: at most so many reads.

    The loops must have constant extents. Raises ValueError if no block reads the buffer, or if it has more than MOST
    elements.
    """
    found = [load.source for load in nodes(func.body, TensorLoad) if load.source.name == buffer]
    if not found:
        raise ValueError(f"No block of this function reads {buffer}.")
    shape = tuple(int(extent) for extent in found[0].shape)
    if math.prod(shape) > MOST:
        raise ValueError(
            f"{buffer} has {math.prod(shape)} elements; a picture shows at most {MOST}."
        )
    stores = [s for s in execute(func, make_ones(func)) if any(r.buffer == buffer for r in s.reads)]
    reads = [
        int(np.ravel_multi_index(read.index, shape))
        for store in stores
        for read in store.reads
        if store.block == stores[0].block and read.buffer == buffer
    ]
    return ReadOrder(title, buffer, shape, tuple(reads[:count]))
