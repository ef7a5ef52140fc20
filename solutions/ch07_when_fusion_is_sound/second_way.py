"""Another right design for exercises 7.1 and 7.3.

**7.1, by trying numbers.** `affine` first makes sure that the epilogue is made of +, - and *, with the sum on only one
side of each product. Then it *measures* the scale and the addend. The addend is the value for a sum of 0. The scale is
the difference between the values for a sum of 1 and a sum of 0. This is easier to believe, because it repeats no rule
of arithmetic. The price: the expressions are not folded, `(1 + c) - (0 + c)` for 1, so code that asks "is the scale 1?"
has to simplify first. And in floating point the difference would be rounded: `(1 + c) - c` need not be 1. So it
measures integers only, and uses the reference's rules for floats.

**7.3, one comparison.** The predicate makes one number of the reduction loops' variables, as of the digits of a
number, and compares it with the largest. That is one comparison instead of several, with a longer expression. TVM's
analysis takes neither form for a bound on a loop, and therefore later primitives refuse to reorder the loops.
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
