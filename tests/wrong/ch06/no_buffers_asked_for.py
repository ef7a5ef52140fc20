"""Asks TVM for the regions of no buffer, and gets none."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.6"
WHAT = "regions asked for without saying of which buffers"
WHY = (
    "get_sblock_access_region reports the buffers of the map it is given, and of no others. An empty map gets "
    "empty regions, without an error."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Regions that lie”"


def refresh_regions(sch: Schedule, block: SBlockRV | str) -> None:
    # BEGIN exercise 6.6 (about 7 lines): ask TVM for the regions, and replace the block by itself
    sref = sch.get_sref(sch.get_sblock(block) if isinstance(block, str) else block)
    old = sref.stmt
    reads, writes, _opaque = get_sblock_access_region(old, {})
    new = with_fields(old, reads=reads, writes=writes)
    sch.state.replace(sref, new, {old: new})
    # END exercise 6.6
