"""4.2: does not look at the axes of the norm."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from solutions.ch04_add_rms_norm.fuse_add_norm import match_add_norm as sound_match

EXERCISE = "4.2"
WHAT = "the norm's axes are not looked at"
WHY = (
    "A square tensor can be normalised along its columns: every shape fits, nothing fails, "
    "and the numbers are others."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “When it must not fire”"


def match_add_norm(norm, value, bound):
    pair = sound_match(norm, value, bound)
    if pair is not None or not is_call(value, "relax.nn.rms_norm"):
        return pair
    axes = [int(axis) % value.args[0].ty.ndim for axis in value.attrs.axes]
    last = value.args[0].ty.ndim - 1
    if axes == [last] or len(axes) != 1:
        return None
    forged = relax.op.nn.rms_norm(*value.args, axes=[last], epsilon=value.attrs.epsilon)
    return sound_match(norm, forged, bound)
