"""7.2: a scaled epilogue with the old step."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.2"
WHAT = "the epilogue multiplies the sum, and the steps are not multiplied"
WHY = (
    "f(t + x) = s (t + x) + c = f(t) + s x. Starting from f(init) scales what was there at the start; "
    "every later x needs its own s."
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
    return "scaled", start, step
