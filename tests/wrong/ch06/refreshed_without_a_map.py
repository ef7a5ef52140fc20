"""Replaces the block without saying that it is the same one."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.6"
WHAT = "a handle that dies when the regions are refreshed"
WHY = (
    "The block is a new object. Without the map {old: new} the schedule takes it for a new block, and the "
    "handle of the old one means nothing."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Regions that lie”"


def refresh_regions(sch: Schedule, block: SBlockRV | str) -> None:
    sref = sch.get_sref(sch.get_sblock(block) if isinstance(block, str) else block)
    old = sref.stmt
    buffers = {var: var for var in nodes(old, Var) if is_buffer_var(var)}
    reads, writes, _opaque = get_sblock_access_region(old, buffers)
    sch.state.replace(sref, with_fields(old, reads=reads, writes=writes), {})
