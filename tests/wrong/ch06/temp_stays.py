"""Leaves `temp` allocated."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.5"
WHAT = "temp still allocated"
WHY = (
    "Nobody writes or reads it any more. It is lowered away later, but until then every pass that plans "
    "memory, and every reader, meets it."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Substitution”"


def new_scope(fusion: Fusion, fused: SBlock) -> SBlock:
    scope = fusion.site.scope
    return with_fields(scope, body=rebuilt(scope.body, fusion, fused))
