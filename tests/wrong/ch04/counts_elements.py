"""4.1: counts elements and not bytes."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.1"
WHAT = "elements are counted, not bytes"
WHY = "Memory moves bytes, and an element of float16 has two of them."
READ = "chapters/ch04_add_rms_norm/lesson.md, “Why this pass”"


def predicted_bytes():
    tensor, weight = 512 * 4096, 4096
    return {"unfused": 5 * tensor + weight, "fused": 4 * tensor + weight}
