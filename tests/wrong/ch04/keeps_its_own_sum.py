"""4.3: no reduction over threads."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from tests.wrong.ch04._kernels import kernel_with

EXERCISE = "4.3"
WHAT = "each thread normalises with its own part of the sum"
WHY = (
    "A row is spread over all threads, so each has summed only its share. The shares must "
    "meet, once a row, before anyone divides."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


row_kernel = kernel_with(over_threads=False)
