"""3.1: the operands of matmul the other way round."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.1"
WHAT = "the transpose stands as the first operand of matmul"
WHY = (
    "A pattern's operands stand in the order of the call's: matmul(x, w transposed) has x first. This one looks for "
    "matmul(w transposed, x), which is another kernel."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 1: find the pair”"


def transpose_matmul_pattern():
    x, w = wildcard(), wildcard()
    transpose = is_op("relax.permute_dims")(w)
    product = is_op("relax.matmul")(transpose, x)
    return product, {"x": x, "w": w, "transpose": transpose, "product": product}
