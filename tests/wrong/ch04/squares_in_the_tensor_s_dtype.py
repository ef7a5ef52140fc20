"""4.3: squares in the tensors' own dtype, and sums in float32."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from tests.wrong.ch04._kernels import kernel_with

EXERCISE = "4.3"
WHAT = "a square is made in the dtype of the tensors, and cast after that"
WHY = (
    "float16 ends at 65504, so the square of 256 is infinite before it becomes a float32, and the norm is zero. "
    "Cast what is squared, not the square."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


def row_kernel(dims, hidden_size, dtype, epsilon, threads):
    return kernel_with(square=lambda held, _x1, _x2: T.float32(held * held))(
        dims, hidden_size, dtype, epsilon, threads
    )
