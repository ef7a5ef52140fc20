"""Rebuilds the loops of a scope with some of its blocks replaced, moved or left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm.s_tir import SBlockRealize
from tvm.tirx import For, SeqStmt, Stmt

from chapters.kit.ir.tensor_ir import with_loop_body


def rebuild(stmt: Stmt, put: Callable[[SBlockRealize], Sequence[Stmt]]) -> Stmt | None:
    """`stmt` with each block realize replaced by the statements that `put` returns for it; None if none are left.

    Only loops and sequences are entered. An empty loop is removed. Statements that do not change stay the same objects.
    """
    parts = _parts(stmt, put)
    if len(parts) > 1:
        return SeqStmt(parts)
    return parts[0] if parts else None


def _parts(stmt: Stmt, put: Callable[[SBlockRealize], Sequence[Stmt]]) -> list[Stmt]:
    if isinstance(stmt, SBlockRealize):
        return list(put(stmt))
    if isinstance(stmt, SeqStmt):
        parts = [part for child in stmt.seq for part in _parts(child, put)]
        same = len(parts) == len(stmt.seq)
        same = same and all(a.same_as(b) for a, b in zip(parts, stmt.seq, strict=True))
        return [stmt] if same else parts
    if isinstance(stmt, For):
        body = rebuild(stmt.body, put)
        if body is None:
            return []
        return [stmt if body.same_as(stmt.body) else with_loop_body(stmt, body)]
    return [stmt]
