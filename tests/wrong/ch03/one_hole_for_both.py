"""3.1: x and w are one wildcard."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.1"
WHAT = "one wildcard stands for x and for w"
WHY = (
    "A hole that occurs twice must be filled with the same tensor twice, so this pattern finds x @ x.T and nothing "
    "else. Each tensor that may be another one needs a wildcard of its own."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 1: find the pair”"


def transpose_matmul_pattern():
    x = wildcard()
    transpose = is_op("relax.permute_dims")(x)
    product = is_op("relax.matmul")(x, transpose)
    return product, {"x": x, "w": x, "transpose": transpose, "product": product}
