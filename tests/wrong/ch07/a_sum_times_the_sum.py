"""7.1: a product whose two factors both hold the sum passes."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.1"
WHAT = "the sum times the sum is taken for a multiple of it"
WHY = "t * t has no scale that is the same for every t. One factor of a product must not mention the sum at all."
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
        return left[0] - right[0], left[1] - right[1]
    if mentions(value.a, total.source):
        return left[0] * value.b, left[1] * value.b
    return right[0] * value.a, right[1] * value.a
