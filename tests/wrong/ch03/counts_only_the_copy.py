"""3.7: only what the transpose writes is counted, not what it reads first."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.7"
WHAT = "only what the transpose writes is counted, not what it reads first"
WHY = "A kernel moves what it reads and what it writes: w goes in once and its copy comes out once."
READ = "chapters/ch03_transpose_matmul/lesson.md, “Measure it”"


def bytes_saved(weights, itemsize):
    return sum(n * k for n, k in weights) * itemsize
