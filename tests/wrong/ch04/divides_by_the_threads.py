"""4.3: the mean is over the threads."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from tests.wrong.ch04._kernels import kernel_with

EXERCISE = "4.3"
WHAT = "the sum of squares is divided by the number of threads"
WHY = (
    "The mean is over the hidden size. With one element a thread the two are the same, so a "
    "test at that size passes."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


row_kernel = kernel_with(mean_of=lambda _hidden_size, threads: threads)
