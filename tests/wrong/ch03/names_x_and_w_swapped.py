"""3.1: x and w are annotated the wrong way round."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.1"
WHAT = "the names x and w stand for each other's tensor"
WHY = (
    "matmul's first operand is x; w is what permute_dims takes. The check is given the parts by these "
    "names."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 1: find the pair”"


def transpose_matmul_pattern():
    x, w = wildcard(), wildcard()
    transpose = is_op("relax.permute_dims")(w)
    product = is_op("relax.matmul")(x, transpose)
    return product, {"x": w, "w": x, "transpose": transpose, "product": product}
