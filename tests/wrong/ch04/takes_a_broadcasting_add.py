"""4.2: compares no shapes."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.2"
WHAT = "an add that broadcasts is taken for one that does not"
WHY = (
    "The kernel reads an element of x2 for each of the result. Where x2 is one row, it reads "
    "past its end."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “When it must not fire”"


def match_add_norm(norm, value, bound):
    if not is_call(value, "relax.nn.rms_norm"):
        return None
    total, weight = value.args
    add = bound.get(total)
    if not is_call(add, "relax.add"):
        return None
    x1, x2 = add.args

    shape = getattr(total.ty.shape, "values", None)
    if (
        not shape
        or not isinstance(shape[-1], tirx.IntImm)
        or int(shape[0].value if isinstance(shape[0], tirx.IntImm) else 1) == 0
    ):
        return None
    if (
        list(value.attrs.axes) not in ([-1], [len(shape) - 1])
        or str(total.ty.dtype) not in ITEM_BYTES
    ):
        return None
    if weight.same_as(total) or not isinstance(x2.ty, relax.TensorType) or x2.ty.ndim == 0:
        return None
    if not isinstance(x1.ty.shape, relax.ShapeExpr):
        return None
    return AddNorm(x1, x2, weight, total, norm, float(value.attrs.epsilon))
