"""4.1: the weight is no traffic."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.1"
WHAT = "the weight is not counted"
WHY = (
    "rms_norm reads its weight too, with or without fusion: one row of 4096 elements, little beside the rest, and "
    "read all the same."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Why this pass”"


def predicted_bytes():
    tensor = 512 * 4096 * 2
    return {"unfused": 5 * tensor, "fused": 4 * tensor}
