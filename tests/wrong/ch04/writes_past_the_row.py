"""4.3: no guard for the tail."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from tests.wrong.ch04._kernels import kernel_with

EXERCISE = "4.3"
WHAT = "the elements past the end of the row are not guarded"
WHY = (
    "Where the threads do not divide the hidden size, the last round has fewer elements than "
    "threads. Unguarded, a thread reads and overwrites the next row, and after the last one "
    "somebody else's memory."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


row_kernel = kernel_with(guarded=False)
