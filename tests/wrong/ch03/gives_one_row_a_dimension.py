"""3.3: an x of one dimension gives a result of two."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.3"
WHAT = "an x of one dimension gives a result with a dimension too many, of size 1"
WHY = (
    "matmul treats a vector as a matrix of one row and then drops that dimension from the result. x of "
    "shape (k,) times w of shape (n, k) gives (n,)."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 2: make the kernel”"

_right = nt_matmul


def nt_matmul(w, x, out_dtype):
    if len(x.shape) > 1:
        return _right(w, x, out_dtype)
    row = te.compute((1, x.shape[0]), lambda _, k: x[k], name="row")
    return _right(w, row, out_dtype)
