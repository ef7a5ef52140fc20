"""4.3: a thread without elements never sets its partial sum."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from tests.wrong.ch04._kernels import kernel_with

EXERCISE = "4.3"
WHAT = "a thread that has no element does not set its partial sum to zero"
WHY = (
    "A `T.where` guards all of its block, the `T.init()` too. A thread past the end of a short row then "
    "brings what its register held into the sum of all: zero it in a block without a guard."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


row_kernel = kernel_with(zero=False, zero_at_first=True)
