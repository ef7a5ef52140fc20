"""Gives each loop that it rebuilds a new variable."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.5"
WHAT = "loops that get a new variable when they are built again"
WHY = (
    "The program is the same, and a schedule knows a loop by its variable: handles taken before the fusion are dead "
    "after it. `with_loop_body` keeps the variable."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Substitution”"


def around(loop: For, body: Stmt) -> For:
    var = Var(loop.loop_var.name, loop.loop_var.ty)
    how = (loop.thread_binding, loop.annotations, loop.step)
    return For(var, loop.min, loop.extent, loop.kind, substitute(body, {loop.loop_var: var}), *how)


def rebuilt(stmt: Stmt, fusion: Fusion, fused: SBlock) -> Stmt | None:
    if isinstance(stmt, SeqStmt):
        parts = [rebuilt(part, fusion, fused) for part in stmt.seq]
        parts = [part for part in parts if part is not None]
        return SeqStmt(parts) if len(parts) > 1 else parts[0] if parts else None
    if isinstance(stmt, For):
        body = rebuilt(stmt.body, fusion, fused)
        return None if body is None else around(stmt, body)
    if isinstance(stmt, SBlockRealize) and stmt.block.same_as(fusion.epilogue):
        return None
    if isinstance(stmt, SBlockRealize) and stmt.block.same_as(fusion.reduction):
        return SBlockRealize(stmt.iter_values, stmt.predicate, fused)
    return stmt


def new_scope(fusion: Fusion, fused: SBlock) -> SBlock:
    scope = fusion.site.scope
    kept = [buffer for buffer in scope.alloc_buffers if not buffer.same_as(fusion.temp)]
    return with_fields(scope, body=rebuilt(scope.body, fusion, fused), alloc_buffers=kept)


def fuse_reduction_epilogue(
    sch: Schedule, reduction_block: SBlockRV | str, epilogue_block: SBlockRV | str
) -> None:
    names = (reduction_block, epilogue_block)
    reduction, epilogue = (sch.get_sblock(n) if isinstance(n, str) else n for n in names)
    fusion = analyse(sch, reduction, epilogue)
    fused = fused_block(fusion)
    scope = new_scope(fusion, fused)
    reuse = {fusion.site.scope: scope, fusion.reduction: fused}
    sch.state.replace(fusion.site.scope_sref, scope, reuse)
