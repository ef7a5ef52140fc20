"""4.3: adds epsilon to the root."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from tests.wrong.ch04._kernels import kernel_with

EXERCISE = "4.3"
WHAT = "epsilon is added after the root"
WHY = (
    "It is rsqrt(mean + epsilon). Added to the root it weighs far more for small numbers, and "
    "nothing for large ones."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


row_kernel = kernel_with(scale=lambda mean, eps: T.float32(1) / (T.sqrt(mean) + eps))
