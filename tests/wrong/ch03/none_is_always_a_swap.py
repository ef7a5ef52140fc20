"""3.2: axes=None counts as a swap on every rank."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.2"
WHAT = "axes=None is taken for a swap of the last two dimensions on every rank"
WHY = (
    "None reverses all dimensions. On a matrix that is the swap; on three dimensions the batch moves to "
    "the end."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “When it must not fire”"


def may_fuse(transpose, product):
    w, x = transpose.args[0], product.args[0]
    if not all(is_typed(expr.ty) for expr in (w, x, product)) or w.ty.ndim < 2:
        return False
    dims = list(range(w.ty.ndim))
    axes = transpose.attrs.axes
    return axes is None or [int(a) % len(dims) for a in axes] == [*dims[:-2], dims[-1], dims[-2]]
