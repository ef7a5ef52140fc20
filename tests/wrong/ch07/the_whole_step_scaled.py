"""7.2: multiplies the whole step, the sum so far included."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.2"
WHAT = "the step is scaled with the sum that it adds to"
WHY = (
    "f(t + x) = f(t) + s x: only the x of a step is multiplied. The sum so far holds its s already; multiplied at "
    "every step it would hold many."
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
    scale, _addend = form
    if is_number(scale, 1):
        return "init", start, step
    return "scaled", start, scale * step
