"""4.1: the fused kernel is charged with reading the sum again."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.1"
WHAT = "the fused kernel reads the sum back from memory"
WHY = (
    "It has just computed the sum, and still holds it in registers. Not reading it back is "
    "the whole saving."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Why this pass”"


def predicted_bytes():
    tensor, weight = 512 * 4096 * 2, 4096 * 2
    return {"unfused": 5 * tensor + weight, "fused": 5 * tensor + weight}
