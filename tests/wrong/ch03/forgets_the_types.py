"""3.2: a shape or dtype that is not known is not noticed."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.2"
WHAT = "operands are accepted whose shape or dtype is not known"
WHY = (
    "A PrimFunc cannot be made for them, so the next step raises and the whole compilation stops. Ask "
    "is_typed of w, of x and of the product."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “When it must not fire”"


def may_fuse(transpose, product):
    w = transpose.args[0]
    if w.ty.ndim < 2:
        return False
    dims = list(range(w.ty.ndim))
    axes = transpose.attrs.axes
    order = dims[::-1] if axes is None else [int(axis) % len(dims) for axis in axes]
    return order == [*dims[:-2], dims[-1], dims[-2]]
