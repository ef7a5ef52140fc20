"""Asks for the regions of the buffers that the block declares."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.6"
WHAT = "regions asked for of the buffers that the block declares"
WHY = (
    "The declaration is what is wrong: the init reads the bias and does not declare it. Take the buffers from "
    "the block's statements."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Regions that lie”"


def refresh_regions(sch: Schedule, block: SBlockRV | str) -> None:
    sref = sch.get_sref(sch.get_sblock(block) if isinstance(block, str) else block)
    old = sref.stmt
    buffers = {region.source: region.source for region in [*old.reads, *old.writes]}
    reads, writes, _opaque = get_sblock_access_region(old, buffers)
    new = with_fields(old, reads=reads, writes=writes)
    sch.state.replace(sref, new, {old: new})
