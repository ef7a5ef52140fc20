"""Another right design for exercises 7.1 and 7.3.

**7.1, by trying numbers.** `affine` first makes sure that the epilogue is made of +, - and * with the sum on one side
of each product only. Then it *measures* the scale and the addend: the addend is the value where the sum is 0, and the
scale is how much the value grows when the sum goes from 0 to 1. That is easier to believe, because no rule of
arithmetic is written down twice. The price: the expressions come out unfolded, `(1 + c) - (0 + c)` for 1, so code that
asks "is the scale 1?" has to simplify first. And in floating point the difference would round: `(1 + c) - c` need not
be 1. So it measures integers only, and falls back to the rules for floats.

**7.3, one comparison.** The predicate numbers the iterations of the reduction loops as one mixed-radix number and
compares it with the last. One comparison in place of several, and a longer expression in it; TVM's analysis reads
neither as a bound on a loop, which is what keeps later primitives from reordering the loops.
"""

from solutions.ch07_when_fusion_is_sound import soundness as _rules
from solutions.ch07_when_fusion_is_sound.soundness import *


def _linear(value: Expr, total: TensorLoad) -> bool:
    if not mentions(value, total.source):
        return True
    if isinstance(value, TensorLoad):
        return structural_equal(value, total)
    if not isinstance(value, (Add, Sub, Mul)):
        return False
    sides = (value.a, value.b)
    if isinstance(value, Mul) and all(mentions(side, total.source) for side in sides):
        return False
    return all(_linear(side, total) for side in sides)


def affine(value: Expr, total: TensorLoad) -> tuple[Expr, Expr] | None:
    dtype = str(total.source.dtype)
    if "int" not in dtype:
        return _rules.affine(value, total)
    if not _linear(value, total):
        return None
    at_zero = replace_loads(value, total.source, const(0, dtype))
    at_one = replace_loads(value, total.source, const(1, dtype))
    simplify = Analyzer().simplify
    return simplify(at_one - at_zero), simplify(at_zero)


def last_step(nest: Nest) -> Expr:
    loops = reduction_loops(nest)
    own = [loop.loop_var for loop in loops]
    others = [loop.loop_var for loop in nest.loops if loop.loop_var not in own]
    parts, number, steps = [], const(0, "int32"), const(1, "int32")
    for loop in loops:
        number = number * loop.extent + (loop.loop_var - loop.min)
        steps = steps * loop.extent
    if loops:
        parts.append(EQ(number, steps - 1))
    for part in conjuncts(nest.realize.predicate):
        summed = any(mentions(part, var) for var in own)
        mixed = summed and any(mentions(part, var) for var in others)
        require(not mixed, nest.block, "one bound is on spatial and reduction loops at once")
        parts += [] if summed else [part]
    return tirx.all(*parts) if parts else const(True, "bool")
