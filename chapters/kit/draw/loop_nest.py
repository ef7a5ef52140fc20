"""The loops of a kernel, drawn as nested boxes, with the blocks that they drive.

`loop_nest(sch)` reads them from the IR: how often each loop runs, how (in parallel, as a vector, …), and whether it
runs along a sum. Two pictures `side_by_side` show what a schedule did. In a terminal a picture is an indented list.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir import SBlock, SBlockRealize, Schedule

from chapters.kit.draw.drawing import Drawing, side_by_side
from chapters.kit.ir.tensor_ir import loads, mentions, nodes, summed_values, thread_axis

__all__ = ["Block", "Loop", "LoopNest", "loop_nest", "side_by_side"]

Remarks = Mapping[str, str]
STYLE = """
.loop-nests{display:flex;flex-wrap:wrap;gap:2em;align-items:flex-start;margin:1.2em 0}
.loop-nests figure{margin:0;width:auto;max-width:none;text-align:left}
.loop-nests figcaption{font-size:.75rem;max-width:none;margin:0 0 .4em;font-style:normal}
.loop-nest,.loop-nest ul{list-style:none;margin:0!important;padding:0}
.loop-nest li{margin:.25em 0!important;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.7rem;
line-height:1.5}
.loop-nest .loop{border:1px solid rgba(128,128,128,.5);border-left:4px solid #6b7f8f;border-radius:3px;
padding:.1em .2em .1em .6em;background:rgba(128,128,128,.05)}
.loop-nest .along-a-sum{border-left-color:#c96f12}
.loop-nest .parallel{border-left-color:#4276d6}
.loop-nest .vectorized{border-left-color:#2f8f5b}
.loop-nest .block{padding:.1em .6em;background:rgba(222,128,30,.16)}
.loop-nest em{font-style:normal;opacity:.85}
"""


@dataclass(frozen=True)
class Block:
    """A block, such as `total`. does: what a run of it does to its result, in words."""

    name: str
    does: str

    def lines(self) -> list[str]:
        """The one line of the block in the list."""
        return [f"{self.name}: {self.does}"]

    def html(self, added: Callable[[str], str]) -> str:
        """The item of the block in the nested HTML lists. added: name -> further attributes."""
        does = html.escape(self.does)
        return f'<li class="block"{added(self.name)}><b>{html.escape(self.name)}</b> <em>{does}</em></li>'


@dataclass(frozen=True)
class Loop:
    """A loop and its body. kind: "serial", "parallel", … or the thread that it is bound to, such as "threadIdx.x".

    remark: what it runs over, in words; "" if the name says it.
    """

    name: str
    extent: str
    kind: str
    along_a_sum: bool
    remark: str
    body: tuple[Loop | Block, ...]

    @property
    def facts(self) -> str:
        """The facts besides name and extent, such as “unrolled, along the sum”."""
        kind = self.kind if self.kind != "serial" else ""
        along = "along the sum" if self.along_a_sum else ""
        return ", ".join(fact for fact in (self.remark, kind, along) if fact)

    def lines(self) -> list[str]:
        """The line of the loop in the list, and the indented lines of its body."""
        head = f"{self.name} {self.extent}" + (f"  ({self.facts})" if self.facts else "")
        return [head, *(f"  {line}" for part in self.body for line in part.lines())]

    def html(self, added: Callable[[str], str]) -> str:
        """The item of the loop in the nested HTML lists. added: name -> HTML behind the loop's facts."""
        kind = f" {self.kind}" if self.kind.isalpha() else ""
        along = " along-a-sum" if self.along_a_sum else ""
        facts = f" <em>{html.escape(self.facts)}</em>" if self.facts else ""
        inner = "".join(part.html(added) for part in self.body)
        head = (
            f"<b>{html.escape(self.name)}</b> {html.escape(self.extent)}{facts}{added(self.name)}"
        )
        return f'<li class="loop{kind}{along}">{head}<ul>{inner}</ul></li>'


@dataclass(frozen=True, repr=False)
class LoopNest(Drawing):
    """The loops of one kernel, in execution order."""

    STYLE, GROUP = STYLE, "loop-nests"

    title: str
    body: tuple[Loop | Block, ...]

    def __str__(self) -> str:
        parts = [f"  {line}" for part in self.body for line in part.lines()]
        return "\n".join([self.title, *parts])

    def boxes(self, added: Callable[[str], str] = lambda _name: "") -> str:
        """The nested boxes. added: name of a block -> further attributes, name of a loop -> further HTML."""
        return f'<ul class="loop-nest">{"".join(part.html(added) for part in self.body)}</ul>'

    def figure(self) -> str:
        """The nested boxes with their title; the style sheet is not included."""
        caption = f"<figcaption><b>{html.escape(self.title)}</b></figcaption>"
        return f"<figure>{caption}{self.boxes()}</figure>"


def loop_nest(
    ir: Schedule | IRModule | tirx.PrimFunc, title: str = "loops", remarks: Remarks | None = None
) -> LoopNest:
    """The loops of a PrimFunc, or of the function `main` of a schedule or a module.

    remarks: name of a loop -> what it runs over, in words.
    """
    if isinstance(ir, Schedule):
        ir = ir.mod
    func = ir["main"] if isinstance(ir, IRModule) else ir
    return LoopNest(title, _read_parts(func.body, remarks or {}))


def _read_parts(stmt: tirx.Stmt, remarks: Remarks) -> tuple[Loop | Block, ...]:
    """The loops and blocks of a statement; a block that holds others is not drawn itself."""
    if isinstance(stmt, tirx.SeqStmt):
        return tuple(part for one in stmt.seq for part in _read_parts(one, remarks))
    if isinstance(stmt, tirx.For):
        return (_read_loop(stmt, remarks),)
    if isinstance(stmt, SBlockRealize):
        block = Block(stmt.block.name_hint, _describe_block(stmt.block))
        return _read_parts(stmt.block.body, remarks) or (block,)
    return ()


def _read_loop(loop: tirx.For, remarks: Remarks) -> Loop:
    kind = thread_axis(loop) or tirx.ForKind(loop.kind).name.lower()
    extent = str(int(loop.extent)) if isinstance(loop.extent, tirx.IntImm) else str(loop.extent)
    summed = [value for at in nodes(loop.body, SBlockRealize) for value in summed_values(at)]
    along = any(mentions(value, loop.loop_var) for value in summed)
    name, body = loop.loop_var.name, _read_parts(loop.body, remarks)
    return Loop(name, extent, kind, along, remarks.get(name, ""), body)


def _describe_block(block: SBlock) -> str:
    """What a run of a block does, in words, such as “sets D”, “adds to temp”, “updates temp”."""
    written = ", ".join(region.source.name.replace(".", "_") for region in block.writes)
    verb = "adds to" if isinstance(getattr(block.body, "value", None), tirx.Add) else "updates"
    if block.init is not None:
        return f"starts {written} at the first step, then {verb} it"
    again = any(loads(block.body, region.source) for region in block.writes)
    return f"{verb if again else 'sets'} {written}"
