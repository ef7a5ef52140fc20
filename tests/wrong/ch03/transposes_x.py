"""3.1: the pattern looks for the transpose on the left."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.1"
WHAT = "the pattern matches matmul(permute_dims(x), w): the transpose on the wrong side"
WHY = (
    "A linear layer is x times w transposed: permute_dims is the second operand of matmul. With the first "
    "transposed, the reduction runs down the columns of x, and reading w as stored helps nothing."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 1: find the pair”"


def transpose_matmul_pattern():
    x, w = wildcard(), wildcard()
    transpose = is_op("relax.permute_dims")(x)
    product = is_op("relax.matmul")(transpose, w)
    return product, {"x": x, "w": w, "transpose": transpose, "product": product}
