"""4.3: writes the norm where the sum belongs."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from tests.wrong.ch04._kernels import kernel_with

EXERCISE = "4.3"
WHAT = "the two results are swapped"
WHY = (
    "call_tir passes its results by position: the norm first, then the sum. Both have one "
    "type, so nothing but the numbers tells."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


row_kernel = kernel_with(swapped=True)
