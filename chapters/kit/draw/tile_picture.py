"""A tiled matmul drawn from its IR: the parts of A, B and D that one block of threads uses, and those of one thread.

In a terminal the picture prints as three lines.
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from tvm import tirx
from tvm.s_tir import SBlock

from chapters.kit.draw.drawing import SMALLEST, Drawing, label, svg
from chapters.kit.ir.tensor_ir import innermost_blocks, nodes, summed_values, thread_axis

# pixels: D's side, the gap between matrices, the extent of k, the enlarged tile's side
SIDE, GAP, BAND, ZOOM = 140, 20, 64, 140
LEFT, TOP = 2, 4
STYLE = """
.tiles{display:block;margin:0 auto}
.tiles text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:currentColor}
.tiles .matrix{fill:none;stroke:currentColor;stroke-opacity:.55}.tiles .block{stroke:currentColor;stroke-opacity:.15}
.tiles .band{fill:#4276d6;fill-opacity:.15}.tiles .staged{fill:#4276d6;fill-opacity:.6}
.tiles .own{fill:#c96f12;fill-opacity:.75}
.tiles .link{stroke:currentColor;stroke-opacity:.3;stroke-dasharray:4 4}
"""


@dataclass(frozen=True, repr=False)
class TilePicture(Drawing):
    """size: m, n, k. grid: tiles of D along m and n. threads: of a block, along m and n.

    turns: blocks of k. steps: of k in one block. own: rows and columns of one thread. shared: buffers in shared memory.
    """

    size: tuple[int, int, int]
    grid: tuple[int, int]
    threads: tuple[int, int]
    turns: int
    steps: int
    own: tuple[int, int]
    shared: tuple[str, ...]

    STYLE, GROUP = STYLE, "kernel-pictures"

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of D that one block computes."""
        return self.size[0] // self.grid[0], self.size[1] // self.grid[1]

    def lines(self) -> list[str]:
        """The three levels in words."""
        (m, n, k), (high, wide) = self.size, self.tile
        where = "in shared memory" if self.shared else "read from memory at every step"
        return [
            f"memory: A {m} × {k}, B {n} × {k}, D {m} × {n} in {self.grid[0]} × {self.grid[1]} tiles",
            f"a block: {high} × {wide} of D; {self.turns} times {high} × {self.steps} of A and "
            f"{wide} × {self.steps} of B, {where}",
            f"each of its {self.threads[0]} × {self.threads[1]} threads: {self.own[0]} × {self.own[1]} sums "
            "in registers, from the bias on",
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def figure(self) -> str:
        """A at the left, B above, D between them, one tile of D enlarged at the right."""
        x0, y0 = LEFT + BAND + GAP, TOP + BAND + GAP  # D's corner
        row, column = self.grid[0] // 2, self.grid[1] // 2
        high, wide = SIDE / self.grid[0], SIDE / self.grid[1]
        y, x = y0 + row * high, x0 + column * wide
        step, turn = BAND / self.turns, self.turns // 2
        shapes = [
            *_matrix(LEFT, y0, BAND, SIDE, "A", LEFT + BAND / 2, y0 + SIDE + 16),
            *_matrix(x0, TOP, SIDE, BAND, "B transposed", x0 + SIDE + 8, TOP + BAND / 2, "start"),
            *_matrix(x0, y0, SIDE, SIDE, "D", x0 + SIDE / 2, y0 + SIDE + 16),
            *_grid(x0, y0, SIDE, self.grid),
            _box("band", LEFT, y, BAND, high),
            _box("band", x, TOP, wide, BAND),
            _box("staged", LEFT + turn * step, y, step, high),
            _box("staged", x, TOP + turn * step, wide, step),
            _box("staged", x, y, wide, high),
        ]
        zoom = x0 + SIDE + 60
        shapes += [
            _line("link", x + wide, y, zoom, y0),
            _line("link", x + wide, y + high, zoom, y0 + ZOOM),
            *self._zoomed(zoom, y0),
        ]
        width = zoom + ZOOM + 2
        drawn = svg("tiles", width, y0 + SIDE + 24, "; ".join(self.lines()), shapes)
        caption = "<br>".join(map(html.escape, self.lines()))
        return (
            f'<figure class="kernel-picture"><div style="max-width:{width}px;min-width:{width * SMALLEST:.0f}px;'
            f'margin:auto">{drawn}</div><figcaption>{caption}</figcaption></figure>'
        )

    def _zoomed(self, x: float, y: float) -> list[str]:
        rows, columns = self.threads
        high, wide = ZOOM / rows, ZOOM / columns
        return [
            *_matrix(x, y, ZOOM, ZOOM, "one block's tile", x + ZOOM / 2, y + ZOOM + 16),
            *_grid(x, y, ZOOM, self.threads),
            _box("own", x + columns // 3 * wide, y + rows // 3 * high, wide, high),
            label(x + ZOOM / 2, y - 10, f"one thread: {self.own[0]} × {self.own[1]}"),
        ]


def tile_picture(func: tirx.PrimFunc) -> TilePicture:
    """Draw `func`, a matmul of A (m, k) and B (n, k) whose loops are bound to blockIdx and threadIdx along y and x.

    The reduction must have four loops in a thread: blocks of k, k in a block, rows, columns. Raises ValueError if it
    has no such loops.
    """
    for loops, realize in innermost_blocks(func.body):
        extents = [(thread_axis(loop), int(loop.extent)) for loop in loops]
        bound = {axis: extent for axis, extent in extents if axis}
        serial = [extent for axis, extent in extents if not axis]
        if summed_values(realize) and len(serial) == 4:
            break
    else:
        bound = {}
    if not {"blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"} <= set(bound):
        raise ValueError(
            "There is no tile to draw: no sum is inside loops that are bound to blockIdx.y, blockIdx.x, threadIdx.y "
            "and threadIdx.x, with four serial loops."
        )
    (m, k), (n, _) = (tuple(int(d) for d in p.shape) for p in func.params[:2])
    turns, steps, *own = serial
    buffers = [buffer for block in nodes(func.body, SBlock) for buffer in block.alloc_buffers]
    return TilePicture(
        (m, n, k),
        (bound["blockIdx.y"], bound["blockIdx.x"]),
        (bound["threadIdx.y"], bound["threadIdx.x"]),
        turns,
        steps,
        (own[0], own[1]),
        tuple(sorted({str(b.name) for b in buffers if str(b.scope()) == "shared"})),
    )


def _matrix(x, y, wide, high, name, at_x, at_y, anchor="middle") -> list[str]:
    return [_box("matrix", x, y, wide, high), label(at_x, at_y, name, anchor)]


def _grid(x: float, y: float, side: float, parts: tuple[int, int]) -> list[str]:
    """The lines that divide a square into `parts` rows and columns."""
    (rows, columns), far_x, far_y = parts, x + side, y + side
    across = [y + i * side / rows for i in range(1, rows)]
    down = [x + j * side / columns for j in range(1, columns)]
    return [
        *(_line("block", x, at, far_x, at) for at in across),
        *(_line("block", at, y, at, far_y) for at in down),
    ]


def _box(kind: str, x: float, y: float, wide: float, high: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"/>'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
