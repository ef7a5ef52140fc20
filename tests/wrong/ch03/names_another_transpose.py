"""3.1: the name is given to a second pattern that is equal and no part of the first."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.1"
WHAT = "a name stands for a pattern that is no part of the one returned"
WHY = (
    "Each is_op(…)(…) makes a new pattern. The one that is named must be the very object that stands in the whole, or "
    "nothing is found under its name. Keep it in a variable and use it in both places."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 1: find the pair”"


def transpose_matmul_pattern():
    x, w = wildcard(), wildcard()
    product = is_op("relax.matmul")(x, is_op("relax.permute_dims")(w))
    transpose = is_op("relax.permute_dims")(w)
    return product, {"x": x, "w": w, "transpose": transpose, "product": product}
