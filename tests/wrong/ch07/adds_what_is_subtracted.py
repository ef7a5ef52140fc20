"""7.1: in a difference the addends are added."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.1"
WHAT = "in `t - c` the c is added"
WHY = "The minus belongs to all of the right-hand side: scale and addend are both subtracted."
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “What may enter the init”"


def affine(value, total):
    zero, one = const(0, str(total.source.dtype)), const(1, str(total.source.dtype))
    if not mentions(value, total.source):
        return zero, value
    if isinstance(value, TensorLoad):
        return (one, zero) if structural_equal(value, total) else None
    if not isinstance(value, (Add, Sub, Mul)):
        return None
    left, right = affine(value.a, total), affine(value.b, total)
    if left is None or right is None:
        return None
    if isinstance(value, Add):
        return left[0] + right[0], left[1] + right[1]
    if isinstance(value, Sub):
        return left[0] - right[0], left[1] + right[1]
    constant, form = (value.a, right) if not mentions(value.a, total.source) else (value.b, left)
    return None if mentions(constant, total.source) else (constant * form[0], constant * form[1])
