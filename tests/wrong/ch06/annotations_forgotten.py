"""Builds the block from its parts and leaves some of them out."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.6"
WHAT = "a block that loses its annotations"
WHY = (
    "An SBlock has nine fields, and a constructor call that names six of them sets the others to nothing. "
    "`with_fields` copies what you do not name."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Regions that lie”"


def refresh_regions(sch: Schedule, block: SBlockRV | str) -> None:
    sref = sch.get_sref(sch.get_sblock(block) if isinstance(block, str) else block)
    old = sref.stmt
    buffers = {var: var for var in nodes(old, Var) if is_buffer_var(var)}
    reads, writes, _opaque = get_sblock_access_region(old, buffers)
    new = SBlock(old.iter_vars, reads, writes, old.name_hint, old.body, old.init)
    sch.state.replace(sref, new, {old: new})
