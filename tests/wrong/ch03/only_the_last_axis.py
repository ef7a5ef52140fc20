"""3.2: only where the last dimension comes from is looked at."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.2"
WHAT = "only the last axis is compared, so rotations and reversals pass for a swap"
WHY = (
    "[2, 0, 1] and the full reversal of three dimensions also bring other dimensions to new places. All "
    "of the axes must be what a swap of the last two has, not one of them."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “When it must not fire”"

may_fuse = careless
