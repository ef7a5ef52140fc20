"""4.6: the key says of every leading dimension whether it is 1."""

from chapters.toolkit.ir.row_index import is_one
from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.6"
WHAT = "a single row gets a key of its own"
WHY = (
    "(1, 1, hidden) is a prefill of one position: the kernel for (1, n, hidden) reads n when it "
    "is called, and serves it. `unit_dimensions` leaves the last 1 out."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Dispatch”"


def kernel_key(pair):
    ones = tuple(is_one(extent) for extent in pair.shape[:-1])
    return ones, pair.hidden_size, pair.dtype, pair.epsilon
