"""7.2: max, min and product take an addend."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.2"
WHAT = "a bias may enter the init of a max, a min or a product"
WHY = (
    "max(t, x) + c is not max(t + c, x): the next x is compared without the bias. Into a max goes only "
    "a max, into a product only a factor."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “What may enter the init”"


def enter_init(value, step, init, total):
    op = operation(step, total)
    start = replace_loads(value, total.source, init)
    if op in (Mul, Max, Min):
        return ("init", start, step) if grouped(value, total, op) or affine(value, total) else None
    form = affine(value, total) if op is Add else None
    if form is None:
        return None
    scale, _addend = form
    if is_number(scale, 1):
        return "init", start, step
    return "scaled", start, total + scale * affine(step, total)[1]
