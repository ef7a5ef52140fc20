"""4.6: the key lacks the dtype."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.6"
WHAT = "the dtype is not part of the key"
WHY = (
    "A kernel's buffers have a dtype. A bfloat16 tensor has as many bytes as a float16 one, "
    "and its bits mean other numbers."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Dispatch”"


def kernel_key(pair):
    units = unit_dimensions(pair.shape)
    return units, pair.hidden_size, pair.epsilon
