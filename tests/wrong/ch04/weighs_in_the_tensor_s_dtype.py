"""4.3: total times weight, before the division, in the tensor's dtype."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from tests.wrong.ch04._kernels import kernel_with

EXERCISE = "4.3"
WHAT = "total times weight is rounded to the tensor's dtype"
WHY = (
    "100 times a weight of 1000 is more than float16 can hold, although the norm, 1 times 1000, "
    "is not. Cast both to float32 first, and round once, at the end."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


row_kernel = kernel_with(weighted=lambda held, weight: T.float32(held * weight))
