"""Maps the reduction and forgets the scope."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.5"
WHAT = "the scope left out of the map of blocks"
WHY = (
    "The scope is a block too. As a new one it has no flags, and compute_at or cache_read in it refuse "
    "because its stages are no pipeline."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Substitution”"


def fuse_reduction_epilogue(
    sch: Schedule, reduction_block: SBlockRV | str, epilogue_block: SBlockRV | str
) -> None:
    names = (reduction_block, epilogue_block)
    reduction, epilogue = (sch.get_sblock(n) if isinstance(n, str) else n for n in names)
    fusion = analyse(sch, reduction, epilogue)
    fused = fused_block(fusion)
    reuse = {fusion.reduction: fused}
    sch.state.replace(fusion.site.scope_sref, new_scope(fusion, fused), reuse)
