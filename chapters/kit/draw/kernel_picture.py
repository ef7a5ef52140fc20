"""A thread-bound kernel drawn from its IR: what a thread reads, keeps and writes, and when it exchanges with others.

Each sblock of the PrimFunc is a step. Three vertical lines are memory, one thread, and the other threads of its block;
time runs downwards. In a terminal the picture prints as a list of its steps.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.s_tir import SBlockRealize

from chapters.kit.draw.drawing import Drawing, kernel_figure, kernel_svg, plain
from chapters.kit.ir.tensor_ir import innermost_blocks, summed_values

MEMORY, THREAD, OTHERS = 24, 208, 404  # x of the three lines
WIDTH, STEP, BOX, HALF = (
    430,
    58,
    19,
    72,
)  # of the picture; from step to step; half of a box, down and across


@dataclass(frozen=True)
class KernelStep:
    """One sblock. memory_*: buffers in global memory. kept: buffers in registers or shared memory that it writes.

    times: how often a thread runs it. vector: elements per run. together: whether it sums over the block's threads.
    """

    name: str
    memory_read: tuple[str, ...]
    memory_written: tuple[str, ...]
    kept: tuple[str, ...]
    times: int
    vector: int
    together: bool

    @property
    def amount(self) -> str:
        """How many elements a thread takes, such as "4 × 8 elements"."""
        if self.vector > 1:
            return f"{self.times} × {self.vector} elements"
        return f"{self.times} element{'' if self.times == 1 else 's'}"

    def __str__(self) -> str:
        parts = [
            self.memory_read and f"read {', '.join(self.memory_read)}",
            self.together and "exchange with the other threads",
            self.kept and f"keep {', '.join(self.kept)}",
            self.memory_written and f"write {', '.join(self.memory_written)}",
        ]
        return f"{self.name:<18} {self.amount:<18} {'; '.join(filter(None, parts))}"


@dataclass(frozen=True, repr=False)
class KernelPicture(Drawing):
    """The steps of a kernel, and its blocks and threads. rows: rows of threads in a block (threadIdx.y)."""

    title: str
    blocks: str
    threads: int
    rows: int
    steps: tuple[KernelStep, ...]

    @property
    def caption(self) -> str:
        block = f"{self.threads} threads" + (f" × {self.rows} rows" if self.rows > 1 else "")
        return f"{self.blocks} blocks of {block}"

    def __str__(self) -> str:
        return "\n".join([f"{self.title}: {self.caption}", *(f"  {step}" for step in self.steps)])

    def _repr_html_(self) -> str:
        caption = f"<b>{html.escape(self.title)}</b> · {html.escape(self.caption)}"
        return kernel_figure(self.svg, caption)

    @property
    def svg(self) -> str:
        """The picture as an SVG in the colour of the surrounding text."""
        height = 50 + STEP * len(self.steps)
        places = [62 + STEP * number for number in range(len(self.steps))]
        # the thread's own line stops at each box, so that it does not run through the text
        stops = {THREAD: [edge for y in places for edge in (y - BOX, y + BOX)]}
        shapes = [_line(x, [28, *stops.get(x, []), height - 6], n) for x, n in _LINES.items()]
        for step, y in zip(self.steps, places, strict=True):
            shapes += _drawn(step, y)
        title = html.escape(f"{self.title}, {self.caption}")
        described = html.escape("; ".join(str(step) for step in self.steps))
        inner = f"<desc>{described}</desc><style>{_STYLE}</style>{''.join(shapes)}"
        return kernel_svg(WIDTH, height, title, inner)


_LINES = {MEMORY: "memory", THREAD: "one thread", OTHERS: "the other threads"}
_STYLE = (
    ".kp text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:currentColor;text-anchor:middle}"
    ".kp .head{font-weight:600;font-size:13px}.kp .small{opacity:.75;font-size:11px}"
    ".kp .life{stroke:currentColor;stroke-opacity:.3}.kp .move{stroke:#4276d6;stroke-width:1.6}.kp .tip{fill:#4276d6}"
    ".kp .meet{stroke:#c96f12;stroke-width:1.6}.kp .meettip{fill:#c96f12}.kp .bar{stroke:#c96f12;stroke-dasharray:5 4}"
    ".kp .box{fill:rgba(128,128,128,.12);stroke:currentColor;stroke-opacity:.5}"
)


def kernel_picture(func: tirx.PrimFunc, title: str) -> KernelPicture:
    """Draw `func`, a PrimFunc with sblocks whose loops are bound to blockIdx.x, threadIdx.x and perhaps threadIdx.y.

    Raises ValueError if no loop is bound to threadIdx.x.
    """
    parameters = {str(param.name) for param in func.params}
    found = innermost_blocks(func.body)
    extents = {_thread(loop): loop.extent for loops, _ in found for loop in loops}
    if "threadIdx.x" not in extents:
        raise ValueError("There are no threads to draw: no loop is bound to threadIdx.x.")
    return KernelPicture(
        title,
        plain(extents.get("blockIdx.x", 1)),
        int(extents["threadIdx.x"]),
        int(extents.get("threadIdx.y", 1)),
        tuple(_step(realize, loops, parameters) for loops, realize in found),
    )


def _thread(loop: tirx.For) -> str:
    """The thread axis that `loop` is bound to, such as "threadIdx.x"; "" if none."""
    return str(loop.thread_binding.thread_tag) if loop.thread_binding is not None else ""


def _step(realize: SBlockRealize, loops: Sequence[tirx.For], parameters: set[str]) -> KernelStep:
    block = realize.block
    read = [str(region.source.name) for region in block.reads]
    written = [str(region.source.name) for region in block.writes]
    threads = {loop.loop_var for loop in loops if _thread(loop).startswith("thread")}
    own = [(loop.kind == tirx.ForKind.VECTORIZED, loop) for loop in loops if not _thread(loop)]
    return KernelStep(
        name=str(block.name_hint).replace("_", " "),
        memory_read=tuple(dict.fromkeys(n for n in read if n in parameters)),
        memory_written=tuple(n for n in written if n in parameters),
        kept=tuple(n for n in written if n not in parameters),
        times=math.prod(int(loop.extent) for is_vector, loop in own if not is_vector),
        vector=math.prod(int(loop.extent) for is_vector, loop in own if is_vector),
        together=any(value in threads for value in summed_values(realize)),
    )


def _line(x: int, ends: list[int], name: str) -> str:
    """A vertical line at `x` under its name, in pieces: from ends[0] to ends[1], from ends[2] to ends[3], ..."""
    pieces = zip(ends[::2], ends[1::2], strict=True)
    # the outer names end where the picture does
    anchor, at = {MEMORY: ("start", 2), OTHERS: ("end", WIDTH - 2)}.get(x, ("middle", x))
    head = f'<text class="head" x="{at}" y="18" style="text-anchor:{anchor}">{name}</text>'
    return head + "".join(
        f'<line class="life" x1="{x}" x2="{x}" y1="{start}" y2="{end}"/>' for start, end in pieces
    )


def _drawn(step: KernelStep, y: int) -> list[str]:
    shapes = []
    if step.together:
        shapes += _arrow(THREAD + HALF + 4, OTHERS - 4, y, "meet", both=True)
        shapes.append(f'<text x="{(THREAD + HALF + OTHERS) / 2:.0f}" y="{y - 7}">exchange</text>')
        shapes.append(f'<line class="bar" x1="0" x2="{WIDTH}" y1="{y + 27}" y2="{y + 27}"/>')
    both = bool(step.memory_read and step.memory_written)
    if step.memory_read:
        shapes += _arrow(MEMORY + 4, THREAD - HALF - 4, y - 6 * both, "move")
        shapes.append(_label(", ".join(step.memory_read), y - 6 - 6 * both))
    if step.memory_written:
        shapes += _arrow(THREAD - HALF - 4, MEMORY + 4, y + 6 * both, "move")
        shapes.append(_label(", ".join(step.memory_written), y + 20 if both else y - 6))
    if (step.memory_read or step.memory_written) and not both:
        shapes.append(_label(step.amount, y + 15, "small"))
    kept = f"sets {', '.join(step.kept)}" if step.kept else ""
    shapes += [
        f'<rect class="box" x="{THREAD - HALF}" y="{y - BOX}" width="{2 * HALF}" height="{2 * BOX}" rx="5"/>',
        f'<text x="{THREAD}" y="{y - 2 if kept else y + 4}">{html.escape(step.name)}</text>',
    ]
    if kept:
        shapes.append(f'<text class="small" x="{THREAD}" y="{y + 13}">{html.escape(kept)}</text>')
    return shapes


def _label(text: str, y: int, kind: str = "") -> str:
    x = (MEMORY + THREAD - HALF) / 2
    return f'<text class="{kind}" x="{x:.0f}" y="{y}">{html.escape(text)}</text>'


def _arrow(start: int, end: int, y: int, kind: str, both: bool = False) -> list[str]:
    way = 1 if end > start else -1
    tip = "meettip" if kind == "meet" else "tip"
    shapes = [f'<line class="{kind}" x1="{start}" x2="{end}" y1="{y}" y2="{y}"/>']
    shapes.append(f'<path class="{tip}" d="M{end} {y}l{-9 * way} -4v8z"/>')
    if both:
        shapes.append(f'<path class="{tip}" d="M{start} {y}l{9 * way} -4v8z"/>')
    return shapes
