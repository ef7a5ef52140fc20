"""A thread-bound kernel drawn from its IR: what a thread reads, keeps and writes, and when it exchanges with others.

Each sblock of the PrimFunc is a step, and time runs downwards. In a terminal the picture prints as a list of its steps.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.s_tir import SBlockRealize

from chapters.kit.draw.drawing import Drawing, strip_types
from chapters.kit.draw.table import count_noun
from chapters.kit.ir.tensor_ir import innermost_blocks, summed_values, thread_axis

STYLE = """
.kernel-pictures{display:flex;flex-wrap:wrap;gap:2em;margin:1.2em 0}
figure.kernel-picture{flex:1 1 20em;width:auto;max-width:100%;margin:0;overflow-x:auto;text-align:center}
.kernel-picture figcaption{max-width:none;font-size:.75rem;font-style:normal}
table.kernel-steps{margin:0 auto;border-collapse:separate;border-spacing:0 .5em;font-size:.62rem;line-height:1.4}
.kernel-steps :is(th,td){padding:.1em .4em;text-align:center;vertical-align:middle}
.kernel-steps td{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.kernel-steps td:first-child{border-left:1px solid rgba(128,128,128,.6)}
.kernel-steps td:last-child{border-right:1px solid rgba(128,128,128,.6)}
.kernel-steps td.step{padding:.3em .8em;border:1px solid rgba(128,128,128,.8);border-radius:.4em}
.kernel-steps .move{color:color-mix(in srgb,#4276d6 65%,currentColor);font-size:1.2em}
.kernel-steps .meet{color:color-mix(in srgb,#c96f12 65%,currentColor);font-size:1.2em}
.kernel-steps .together td:last-child{border-right:3px solid #c96f12}
"""


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
        return count_noun(self.times, "element")

    def row(self) -> str:
        """The step as a row of the picture's table."""
        read, written, kept = (
            html.escape(", ".join(names))
            for names in (self.memory_read, self.memory_written, self.kept)
        )
        arrows = ["→"] * bool(read) + ["←"] * bool(written)
        amount = f"<br>{self.amount}" if arrows else ""
        sets = f"<br>sets {kept}" if kept else ""
        meets = ('<span class="meet">⇄</span>', "exchange") if self.together else ("", "")
        kind = ' class="together"' if self.together else ""
        return (
            f"<tr{kind}><td>{'<br>'.join(filter(None, (read, written)))}</td>"
            f'<td><span class="move">{"<br>".join(arrows)}</span>{amount}</td>'
            f'<td class="step"><b>{html.escape(self.name)}</b>{sets}</td>'
            f"<td>{meets[0]}</td><td>{meets[1]}</td></tr>"
        )

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

    STYLE, GROUP = STYLE, "kernel-pictures"

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

    def figure(self) -> str:
        """A table with a row per step: memory at the left, one thread in the middle, the other threads at the right."""
        rows = "".join(step.row() for step in self.steps)
        return (
            f'<figure class="kernel-picture"><table class="kernel-steps"><thead><tr><th>memory</th><th></th>'
            f"<th>one thread</th><th></th><th>the other threads</th></tr></thead><tbody>{rows}</tbody></table>"
            f"<figcaption><b>{html.escape(self.title)}</b> · {html.escape(self.caption)}</figcaption></figure>"
        )


def kernel_picture(func: tirx.PrimFunc, title: str) -> KernelPicture:
    """Draw `func`, a PrimFunc with sblocks whose loops are bound to blockIdx.x, threadIdx.x and perhaps threadIdx.y.

    Raises ValueError if no loop is bound to threadIdx.x.
    """
    parameters = {str(param.name) for param in func.params}
    found = innermost_blocks(func.body)
    extents = {thread_axis(loop): loop.extent for loops, _ in found for loop in loops}
    if "threadIdx.x" not in extents:
        raise ValueError("There are no threads to draw: no loop is bound to threadIdx.x.")
    return KernelPicture(
        title,
        strip_types(extents.get("blockIdx.x", 1)),
        int(extents["threadIdx.x"]),
        int(extents.get("threadIdx.y", 1)),
        tuple(_step(realize, loops, parameters) for loops, realize in found),
    )


def _step(realize: SBlockRealize, loops: Sequence[tirx.For], parameters: set[str]) -> KernelStep:
    block = realize.block
    read = [str(region.source.name) for region in block.reads]
    written = [str(region.source.name) for region in block.writes]
    threads = {loop.loop_var for loop in loops if thread_axis(loop).startswith("thread")}
    own = [(loop.kind == tirx.ForKind.VECTORIZED, loop) for loop in loops if not thread_axis(loop)]
    return KernelStep(
        name=str(block.name_hint).replace("_", " "),
        memory_read=tuple(dict.fromkeys(n for n in read if n in parameters)),
        memory_written=tuple(n for n in written if n in parameters),
        kept=tuple(n for n in written if n not in parameters),
        times=math.prod(int(loop.extent) for is_vector, loop in own if not is_vector),
        vector=math.prod(int(loop.extent) for is_vector, loop in own if is_vector),
        together=any(value in threads for value in summed_values(realize)),
    )
