"""Finds two sblocks of one scope: the loops around each, and everything that runs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm.s_tir import SBlock, SBlockRealize, Schedule, StmtSRef
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import For, SeqStmt, Stmt

from chapters.kit.ir.refuse import require


@dataclass(frozen=True)
class Nest:
    """A block and what encloses it: `path` leads from the body of its scope down to its realize."""

    path: tuple[Stmt, ...]

    @property
    def realize(self) -> SBlockRealize:
        return self.path[-1]

    @property
    def block(self) -> SBlock:
        return self.realize.block

    @property
    def loops(self) -> list[For]:
        """The loops of the scope around the block, outermost first."""
        return [stmt for stmt in self.path if isinstance(stmt, For)]

    @property
    def is_staged(self) -> bool:
        """Whether its loops are to become a software pipeline, in which iterations overlap."""
        keys = [key for loop in self.loops for key in loop.annotations]
        return any(key.startswith("software_pipeline") for key in keys)


@dataclass(frozen=True)
class BlockSite:
    """Two blocks of one scope, `producer` before `consumer`.

    shared: the loops around both. span: the statements of their innermost common sequence, from the one that holds the
    producer to the one that holds the consumer. Whatever runs between the two in one iteration of the shared loops is
    in `span`.
    """

    scope_sref: StmtSRef
    producer: Nest
    consumer: Nest
    shared: list[For]
    span: list[Stmt]

    @property
    def scope(self) -> SBlock:
        return self.scope_sref.stmt


def locate(sch: Schedule, producer: SBlockRV, consumer: SBlockRV) -> BlockSite:
    """Find two blocks of `sch`.

    Raises ScheduleError unless they are two blocks of one scope, the producer before the consumer, with nothing but
    loops, sequences and blocks around and between them: no branch, no definition, no call outside a block.
    """
    scope_sref, first, last = _scope_sref(sch, producer), sch.get(producer), sch.get(consumer)
    same = scope_sref.same_as(_scope_sref(sch, consumer)) and not first.same_as(last)
    require(same, last, "it is not another block of the scope that contains the reduction")
    nests = [Nest(_path(scope_sref.stmt.body, block)) for block in (first, last)]
    for block, nest in zip((first, last), nests, strict=True):
        require(bool(nest.path), block, "something other than loops and sequences is around it")
    paths = [nest.path for nest in nests]
    depth = next(i for i in range(len(paths[0])) if not paths[0][i].same_as(paths[1][i]))
    sequence = paths[0][depth - 1].seq
    begin, end = (_position(sequence, path[depth]) for path in paths)
    require(begin < end, last, "it stands before the reduction")
    span = list(sequence[begin : end + 1])
    other = "something other than loops and blocks is between the reduction and it"
    require(all(map(_only_loops_and_blocks, span)), last, other)
    shared = [stmt for stmt in paths[0][:depth] if isinstance(stmt, For)]
    return BlockSite(scope_sref, *nests, shared, span)


def _scope_sref(sch: Schedule, block: SBlockRV) -> StmtSRef:
    sref = sch.get_sref(block).parent
    while sref is not None and not isinstance(sref.stmt, SBlock):
        sref = sref.parent
    require(sref is not None, sch.get(block), "it is the root of its function")
    return sref


def _path(stmt: Stmt, block: SBlock) -> tuple[Stmt, ...]:
    """The statements from `stmt` down to the realize of `block`; () if it is not beneath loops and sequences alone."""
    if isinstance(stmt, SBlockRealize):
        return (stmt,) if stmt.block.same_as(block) else ()
    for child in _children(stmt):
        below = _path(child, block)
        if below:
            return (stmt, *below)
    return ()


def _children(stmt: Stmt) -> Sequence[Stmt]:
    if isinstance(stmt, SeqStmt):
        return stmt.seq
    return (stmt.body,) if isinstance(stmt, For) else ()


def _position(sequence: Sequence[Stmt], stmt: Stmt) -> int:
    return next(i for i, candidate in enumerate(sequence) if candidate.same_as(stmt))


def _only_loops_and_blocks(stmt: Stmt) -> bool:
    if isinstance(stmt, SBlockRealize):
        return True
    return isinstance(stmt, (For, SeqStmt)) and all(map(_only_loops_and_blocks, _children(stmt)))
