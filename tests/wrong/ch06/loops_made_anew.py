"""Rebuilds loops with nothing but their variable and extent."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.5"
WHAT = "loops that lose their kind and annotations"
WHY = (
    "A loop that was parallel, bound to a thread or annotated is the schedule that somebody made. "
    "`with_loop_body` copies all of it."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Substitution”"


def rebuilt(stmt: Stmt, fusion: Fusion, fused: SBlock) -> Stmt | None:
    if isinstance(stmt, SeqStmt):
        parts = [rebuilt(part, fusion, fused) for part in stmt.seq]
        parts = [part for part in parts if part is not None]
        return SeqStmt(parts) if len(parts) > 1 else parts[0] if parts else None
    if isinstance(stmt, For):
        body = rebuilt(stmt.body, fusion, fused)
        if body is None:
            return None
        return For(stmt.loop_var, stmt.min, stmt.extent, ForKind.SERIAL, body)
    if isinstance(stmt, SBlockRealize) and stmt.block.same_as(fusion.epilogue):
        return None
    if isinstance(stmt, SBlockRealize) and stmt.block.same_as(fusion.reduction):
        return SBlockRealize(stmt.iter_values, stmt.predicate, fused)
    return stmt


def new_scope(fusion: Fusion, fused: SBlock) -> SBlock:
    scope = fusion.site.scope
    kept = [buffer for buffer in scope.alloc_buffers if not buffer.same_as(fusion.temp)]
    return with_fields(scope, body=rebuilt(scope.body, fusion, fused), alloc_buffers=kept)
