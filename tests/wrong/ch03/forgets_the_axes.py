"""3.2: any permute_dims will do."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.2"
WHAT = "the axes are not looked at: any permute_dims is taken for a transpose"
WHY = (
    "permute_dims can leave everything in place, reverse all dimensions or permute a batch. The kernel "
    "always reads w[…, j, k]; where the sizes agree it silently multiplies by other elements."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “When it must not fire”"


def may_fuse(transpose, product):
    w, x = transpose.args[0], product.args[0]
    return all(is_typed(expr.ty) for expr in (w, x, product)) and w.ty.ndim >= 2
