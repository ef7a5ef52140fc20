"""4.9: leaves out what is written."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.9"
WHAT = "what is written is not counted"
WHY = (
    "Memory carries both ways, and the fused kernel writes as much as the two together. "
    "Without the writes the saving looks larger than it is."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Measure it”"


def bytes_moved(mod, target, sizes):
    count = earlier(1).binding_bytes
    return tuple(
        sum(row.read for row in count(m["main"], sizes)) for m in (mod, FuseAddRMSNorm(target)(mod))
    )
