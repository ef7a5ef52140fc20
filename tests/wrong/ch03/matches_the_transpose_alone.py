"""3.1: the pattern that is returned is the transpose."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.1"
WHAT = "the pattern that is returned is the permute_dims and not the matmul above it"
WHY = (
    "A pattern is matched from its root, the call whose result leaves the group. The root is the matmul; "
    "the transpose and the wildcards hang below it."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 1: find the pair”"


def transpose_matmul_pattern():
    w = wildcard()
    transpose = is_op("relax.permute_dims")(w)
    return transpose, {"w": w, "transpose": transpose}
