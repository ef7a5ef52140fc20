"""7.2: the new init is the bias alone."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.2"
WHAT = "the old init is forgotten: the reduction starts from the bias alone"
WHY = (
    "The sum started from its own init and f was applied on top: the new start is f(init). Only where "
    "init is 0 is that the bias."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “What may enter the init”"


def enter_init(value, step, init, total):
    op = operation(step, total)
    start = replace_loads(value, total.source, init)
    if op in (Mul, Max, Min):
        return ("init", start, step) if grouped(value, total, op) else None
    form = affine(value, total) if op is Add else None
    if form is None:
        return None
    scale, addend = form
    if is_number(scale, 1):
        return "init", addend, step
    return "scaled", start, total + scale * affine(step, total)[1]
