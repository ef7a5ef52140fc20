"""Replaces the scope without saying which new block is which old one."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.5"
WHAT = "a replacement without the map of blocks"
WHY = (
    "`replace` takes a block that its map does not name for a new one: handles of the old one die, and "
    "the new one's flags are all false."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Substitution”"


def fuse_reduction_epilogue(
    sch: Schedule, reduction_block: SBlockRV | str, epilogue_block: SBlockRV | str
) -> None:
    names = (reduction_block, epilogue_block)
    reduction, epilogue = (sch.get_sblock(n) if isinstance(n, str) else n for n in names)
    fusion = analyse(sch, reduction, epilogue)
    scope = new_scope(fusion, fused_block(fusion))
    sch.state.replace(fusion.site.scope_sref, scope, {})
