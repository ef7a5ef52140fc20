"""3.2: axes that count from the end are not recognised."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.2"
WHAT = "axes that count from the end, such as [-1, -2], are not recognised"
WHY = (
    "TVM keeps the axes as they were written. -1 and rank - 1 are one dimension: bring both to the same "
    "form before you compare. MLC-LLM's pass and TVM's own miss these spellings too."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Step 1: find the pair”"


def may_fuse(transpose, product):
    w, x = transpose.args[0], product.args[0]
    if not all(is_typed(expr.ty) for expr in (w, x, product)) or w.ty.ndim < 2:
        return False
    dims = list(range(w.ty.ndim))
    axes = transpose.attrs.axes
    order = dims[::-1] if axes is None else [int(axis) for axis in axes]
    return order == [*dims[:-2], dims[-1], dims[-2]]
