"""Adds missing regions and removes none."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.6"
WHAT = "regions added, but stale ones kept"
WHY = (
    "The update still declares the bias, which it no longer reads. tensorize compares the lists, and "
    "refuses both for a missing and for a stale entry."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Regions that lie”"


def refresh_regions(sch: Schedule, block: SBlockRV | str) -> None:
    sref = sch.get_sref(sch.get_sblock(block) if isinstance(block, str) else block)
    old = sref.stmt
    buffers = {var: var for var in nodes(old, Var) if is_buffer_var(var)}
    reads, writes, _opaque = get_sblock_access_region(old, buffers)
    if old.reads:
        reads = old.reads
    new = with_fields(old, reads=reads, writes=writes)
    sch.state.replace(sref, new, {old: new})
