"""3.7: elements are counted, not bytes."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.7"
WHAT = "elements are counted, not bytes"
WHY = "An element of float16 is two bytes and one of float32 is four: multiply by itemsize."
READ = "chapters/ch03_transpose_matmul/lesson.md, “Measure it”"


def bytes_saved(weights, itemsize):
    return sum(2 * n * k for n, k in weights)
