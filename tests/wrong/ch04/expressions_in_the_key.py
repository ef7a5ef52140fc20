"""4.6: the kernel's own dimensions, as TIR expressions."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.6"
WHAT = "the key holds TIR expressions"
WHY = (
    "`==` of two of them is a third expression, neither true nor false, and each call of row_dimensions makes "
    "new variables. `unit_dimensions` says the same in booleans."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Dispatch”"


def kernel_key(pair):
    return (
        tuple(row_dimensions(pair.shape)),
        pair.hidden_size,
        pair.dtype,
        pair.epsilon,
    )
