"""4.9: counts the module before the pass twice."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.9"
WHAT = "the module after the pass is never counted"
WHY = "A pass returns a new module and leaves the old one as it was: count what it returned."
READ = "chapters/ch04_add_rms_norm/lesson.md, “Measure it”"


def bytes_moved(mod, target, sizes):
    FuseAddRMSNorm(target)(mod)
    count = earlier(1).binding_bytes
    moved = sum(row.read + row.written for row in count(mod["main"], sizes))
    return moved, moved
