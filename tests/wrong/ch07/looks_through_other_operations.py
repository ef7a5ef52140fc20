"""7.1: max, casts and divisions are looked through."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.1"
WHAT = "the sum inside another operation is taken for the sum itself"
WHY = (
    "max(t, c), t // 2 and cast(t) are no multiples of t plus something. Whoever walks through "
    "operations it does not know has to refuse at them."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “What may enter the init”"


def affine(value, total):
    zero, one = const(0, str(total.source.dtype)), const(1, str(total.source.dtype))
    if not mentions(value, total.source):
        return zero, value
    if isinstance(value, TensorLoad):
        return (one, zero) if structural_equal(value, total) else None
    if not isinstance(value, (Add, Sub, Mul)):
        return affine(getattr(value, "a", getattr(value, "value", total)), total)
    left, right = affine(value.a, total), affine(value.b, total)
    if left is None or right is None:
        return None
    if isinstance(value, Add):
        return left[0] + right[0], left[1] + right[1]
    if isinstance(value, Sub):
        return left[0] - right[0], left[1] - right[1]
    constant, form = (value.a, right) if not mentions(value.a, total.source) else (value.b, left)
    return None if mentions(constant, total.source) else (constant * form[0], constant * form[1])
