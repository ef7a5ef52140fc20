"""3.3: out_dtype is ignored altogether."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.3"
WHAT = "out_dtype is ignored: product and sum stay in the operands' dtype"
WHY = (
    "The matmul that is replaced may have said out_dtype; then its type says another dtype than its "
    "operands', and so must the kernel's result."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 2: make the kernel”"

_right = nt_matmul


def nt_matmul(w, x, out_dtype):
    return _right(w, x, str(x.dtype))
