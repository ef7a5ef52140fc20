"""Makes a sequence of whatever is left of one."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.5"
WHAT = "a SeqStmt of one statement"
WHY = (
    "TVM builds a SeqStmt of two statements or more only: where one is left, it stands for itself."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Substitution”"


def new_scope(fusion: Fusion, fused: SBlock) -> SBlock:
    scope = fusion.site.scope
    kept = [buffer for buffer in scope.alloc_buffers if not buffer.same_as(fusion.temp)]
    return with_fields(scope, body=in_sequence(scope.body, fusion, fused), alloc_buffers=kept)


def in_sequence(stmt: Stmt, fusion: Fusion, fused: SBlock) -> Stmt | None:
    if not isinstance(stmt, SeqStmt):
        return rebuilt(stmt, fusion, fused)
    parts = [rebuilt(part, fusion, fused) for part in stmt.seq]
    return SeqStmt([part for part in parts if part is not None])
