"""Removes everything from the reduction's loops to the epilogue's and puts the fused nest there."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.5"
WHAT = "other blocks of the shared loops removed with the epilogue"
WHY = (
    "Only the epilogue's own loops become empty. What else stands in the loops around it still has to "
    "run."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Substitution”"


def new_scope(fusion: Fusion, fused: SBlock) -> SBlock:
    scope = fusion.site.scope
    nest = next(s for s in fusion.site.span if mentions(s, fusion.temp))
    body = substituted_block(nest, fusion, fused)
    for loop in reversed(fusion.site.shared):
        body = with_loop_body(loop, body)
    kept = [buffer for buffer in scope.alloc_buffers if not buffer.same_as(fusion.temp)]
    return with_fields(scope, body=body, alloc_buffers=kept)


def substituted_block(nest: Stmt, fusion: Fusion, fused: SBlock) -> Stmt:
    return rebuilt(nest, fusion, fused)
