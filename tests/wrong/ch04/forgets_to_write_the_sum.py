"""4.1: the fused kernel does not write the sum."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.1"
WHAT = "the fused kernel does not write the sum"
WHY = "The next residual add reads the sum, so it must go to memory: two results, two writes."
READ = "chapters/ch04_add_rms_norm/lesson.md, “Why this pass”"


def predicted_bytes():
    tensor, weight = 512 * 4096 * 2, 4096 * 2
    return {"unfused": 5 * tensor + weight, "fused": 3 * tensor + weight}
