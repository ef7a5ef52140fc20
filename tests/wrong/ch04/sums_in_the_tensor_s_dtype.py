"""4.3: sums squares in the tensors' own dtype."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from tests.wrong.ch04._kernels import kernel_with

EXERCISE = "4.3"
WHAT = "squares are summed in the dtype of the tensors"
WHY = (
    "float16 ends at 65504: sixteen squares of 100 exceed it, and the norm is zero. bfloat16 "
    "does not overflow, but drops every addend below 1/256 of the sum."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


def row_kernel(dims, hidden_size, dtype, epsilon, threads):
    return kernel_with(square=lambda held, _x1, _x2: held * held, accumulate=dtype)(
        dims, hidden_size, dtype, epsilon, threads
    )
