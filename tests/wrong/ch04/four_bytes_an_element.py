"""4.1: counts float32."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.1"
WHAT = "a float16 takes four bytes"
WHY = (
    "float16 has 16 bits, two bytes. The ratio is right all the same, which is why such a "
    "slip is easy to miss."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Why this pass”"


def predicted_bytes():
    tensor, weight = 512 * 4096 * 4, 4096 * 4
    return {"unfused": 5 * tensor + weight, "fused": 4 * tensor + weight}
