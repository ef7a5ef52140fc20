"""The order in which a kernel reads a buffer, found by walking its loop nest, and drawn on the buffer's memory.

`read_order(func, "w")` runs the loops of a PrimFunc with small constant sizes in Python, and notes each element that
the named buffer is read at. Nothing is compiled; what the picture shows is what the loops say.
"""

from __future__ import annotations

import html
import itertools
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import sym, tirx
from tvm.s_tir import SBlockRealize

MOST = 400  # elements; more cannot be read in a picture
CELL = 34
STYLE = """
.read-orders{display:flex;flex-wrap:wrap;gap:2em;align-items:flex-start;margin:1.2em 0}
.read-orders figure{margin:0}
.read-orders figcaption{font-size:.75rem;max-width:none;margin:.4em 0 0;font-style:normal}
.ro text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:11px;fill:currentColor;
text-anchor:middle}
.ro rect{fill:rgba(128,128,128,.10);stroke:currentColor;stroke-opacity:.4}
.ro .read{fill:rgba(222,128,30,.22);stroke:#c96f12;stroke-opacity:1}
.ro path{fill:none;stroke:#c96f12;stroke-width:1.6;stroke-opacity:.8}
"""


@dataclass(frozen=True)
class ReadOrder:
    """Where `buffer` of shape `shape` is read by the first `reads` of `title`'s innermost work, in order.

    strides: the steps in memory from each read to the next, in elements.
    """

    title: str
    buffer: str
    shape: tuple[int, ...]
    reads: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in itertools.pairwise(self.reads))

    @property
    def caption(self) -> str:
        steps = sorted(set(self.strides))
        told = ", ".join(map(str, steps[:4]))
        return f"{self.title}: {self.buffer} read with steps of {told} element{'s'[: steps != [1]]}"

    def __str__(self) -> str:
        order = {flat: number for number, flat in enumerate(self.reads)}
        columns = self.shape[-1]
        cells = [str(order.get(flat, "·")).rjust(3) for flat in range(_size(self.shape))]
        rows = [" ".join(cells[r : r + columns]) for r in range(0, len(cells), columns)]
        return "\n".join([self.caption, *rows])

    __repr__ = __str__

    def svg(self) -> str:
        columns = self.shape[-1]
        width, height = columns * CELL + 2, _size(self.shape) // columns * CELL + 2
        order = {flat: number for number, flat in enumerate(self.reads)}
        shapes = []
        for flat in range(_size(self.shape)):
            x, y = flat % columns * CELL + 1, flat // columns * CELL + 1
            mark = ' class="read"' if flat in order else ""
            shapes.append(f'<rect{mark} x="{x}" y="{y}" width="{CELL}" height="{CELL}"/>')
        middle = [
            (flat % columns * CELL + CELL / 2 + 1, flat // columns * CELL + CELL / 2 + 1)
            for flat in self.reads
        ]
        shapes.append('<path d="M' + "L".join(f"{x:.0f} {y:.0f}" for x, y in middle) + '"/>')
        for flat, number in order.items():
            x, y = flat % columns * CELL + 10, flat // columns * CELL + 13
            shapes.append(f'<text x="{x}" y="{y}">{number}</text>')
        label = html.escape(self.caption)
        return (
            f'<figure><svg xmlns="http://www.w3.org/2000/svg" class="ro" role="img" aria-label="{label}" '
            f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">{"".join(shapes)}</svg>'
            f"<figcaption>{label}</figcaption></figure>"
        )

    def _repr_html_(self) -> str:
        return str(ReadOrders((self,))._repr_html_())


@dataclass(frozen=True)
class ReadOrders:
    """Several read orders side by side."""

    orders: tuple[ReadOrder, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.orders))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        pictures = "".join(order.svg() for order in self.orders)
        return f'<style data-course>{STYLE}</style><div class="read-orders">{pictures}</div>'


def side_by_side(*orders: ReadOrder) -> ReadOrders:
    return ReadOrders(orders)


def read_order(func: tirx.PrimFunc, buffer: str, title: str, count: int | None = None) -> ReadOrder:
    """The order in which the first block of `func` that reads `buffer` reads it; `count`: its first reads only.

    The loops must have constant extents, and the buffer at most MOST elements; ValueError if not.
    """
    loops, realize = _nest(func.body, buffer)
    load = _load(realize.block, buffer)
    shape = tuple(int(extent) for extent in load.source.shape)
    if _size(shape) > MOST:
        raise ValueError(f"{buffer} has {_size(shape)} elements; a picture shows at most {MOST}.")
    at = dict(zip([iv.var for iv in realize.block.iter_vars], realize.iter_values, strict=True))
    reads: list[int] = []
    ranges = [range(int(loop.extent)) for loop in loops]
    for point in itertools.islice(itertools.product(*ranges), count):
        values = dict(zip([loop.loop_var for loop in loops], point, strict=True))
        reads.append(_flat([_value(_value(i, at), values) for i in load.indices], shape))
    return ReadOrder(title, buffer, shape, tuple(reads))


def _nest(stmt: tirx.Stmt, buffer: str) -> tuple[list[tirx.For], SBlockRealize]:
    """The loops around the innermost block that reads `buffer`, and that block."""
    found: list[tuple[list[tirx.For], SBlockRealize]] = []

    def look(node, loops: list[tirx.For]) -> None:
        if isinstance(node, tirx.For):
            look(node.body, [*loops, node])
        elif isinstance(node, tirx.SeqStmt):
            for part in node.seq:
                look(part, loops)
        elif isinstance(node, SBlockRealize):
            if node.block.iter_vars and _load(node.block, buffer) is not None:
                found.append((loops, node))
            look(node.block.body, loops)

    look(stmt, [])
    if not found:
        raise ValueError(f"No block of this function reads {buffer}.")
    return found[0]


def _load(block, buffer: str):
    loads: list = []

    def note(load) -> None:
        if load.source.name == buffer:
            loads.append(load)

    tvm_ffi.structural_walk(block.body, (tvm.ir.TensorLoad, note))
    return loads[0] if loads else None


def _value(expr, values: dict):
    """`expr` with variables replaced by `values`, simplified."""
    replaced = tvm_ffi.structural_map(
        tirx.convert(expr), (tvm.ir.Var, lambda var: tirx.convert(values.get(var, var)))
    )
    return sym.Analyzer().simplify(replaced)


def _flat(index: list, shape: tuple[int, ...]) -> int:
    flat = 0
    for part, extent in zip(index, shape, strict=True):
        flat = flat * extent + int(part)
    return flat


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
