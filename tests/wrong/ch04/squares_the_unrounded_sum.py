"""4.3: squares x1 + x2 in float32."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from tests.wrong.ch04._kernels import kernel_with

EXERCISE = "4.3"
WHAT = "the sum is squared before it is rounded"
WHY = (
    "The next layer reads the sum as float16. A norm of other numbers than those is the norm "
    "of another model; the difference is half a digit, everywhere."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


row_kernel = kernel_with(
    square=lambda _held, x1, x2: (T.float32(x1) + T.float32(x2)) * (T.float32(x1) + T.float32(x2))
)
