"""4.6: the key lacks epsilon."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.6"
WHAT = "epsilon is not part of the key"
WHY = (
    "It is compiled into the kernel as a constant. Two norms with two epsilons give results "
    "that differ in the third digit: nothing fails."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Dispatch”"


def kernel_key(pair):
    return unit_dimensions(pair.shape), pair.hidden_size, pair.dtype
