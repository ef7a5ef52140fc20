"""4.2: asks with `is` whether the weight is the sum."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from solutions.ch04_add_rms_norm.fuse_add_norm import match_add_norm as sound_match

EXERCISE = "4.2"
WHAT = "a sum that is also the weight is not noticed: not asked for, or asked for with `is`"
WHY = (
    "Each look into the IR makes another Python object of the same variable, so `is` says no. "
    "`same_as` and `==` ask about the variable."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Match”"


def match_add_norm(norm, value, bound):
    pair = sound_match(norm, value, bound)
    if pair is not None or not is_call(value, "relax.nn.rms_norm"):
        return pair
    total, weight = value.args
    if total is weight or not total.same_as(weight):
        return None
    other = relax.Var("weight", weight.ty)
    forged = relax.op.nn.rms_norm(total, other, value.attrs.axes, value.attrs.epsilon)
    pair = sound_match(norm, forged, bound)
    return pair and AddNorm(pair.x1, pair.x2, weight, total, norm, pair.epsilon)
