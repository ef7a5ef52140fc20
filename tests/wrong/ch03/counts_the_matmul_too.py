"""3.7: the matmul's own reading of w is counted as saved."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.7"
WHAT = "the matmul's own reading of w is counted as saved"
WHY = (
    "The matmul reads w before and after, only from another place. Saved is what the transpose kernel "
    "moved."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Measure it”"


def bytes_saved(weights, itemsize):
    return sum(3 * n * k for n, k in weights) * itemsize
