"""4.3: partial sums start from what the register held."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from tests.wrong.ch04._kernels import kernel_with

EXERCISE = "4.3"
WHAT = "the partial sums do not start at zero"
WHY = "A register holds what the last kernel left in it. Often that is zero."
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


row_kernel = kernel_with(zero=False)
