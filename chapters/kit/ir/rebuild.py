"""Rebuilds modules with some calls replaced, and loops with some blocks replaced, moved or left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import SBlockRealize
from tvm.tirx import For, SeqStmt, Stmt, stmt_seq

from chapters.kit.ir.tensor_ir import with_loop_body


def replace_calls(
    mod: tvm.IRModule, replace: Callable[[relax.Call, relax.BlockBuilder], relax.Expr]
) -> tvm.IRModule:
    """`mod` with each call in its Relax functions replaced by what `replace` returns, perhaps the call itself.

    `replace` gets the call with its operands already replaced, and a builder that emits bindings before it.
    """

    @mutator
    class Replacer(PyExprMutator):
        def visit_call_(self, call: relax.Call) -> relax.Expr:
            return replace(super().visit_call_(call), self.builder_)

    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, relax.Function):
            result[gvar] = Replacer(mod).visit_expr(func)
    return result


def rebuild(stmt: Stmt, put: Callable[[SBlockRealize], Sequence[Stmt]]) -> Stmt | None:
    """`stmt` with each block realize replaced by the statements that `put` returns for it; None if none are left.

    Only loops and sequences are entered. An empty loop is removed. Statements that do not change stay the same objects.
    """
    parts = _parts(stmt, put)
    return stmt_seq(*parts) if parts else None


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
