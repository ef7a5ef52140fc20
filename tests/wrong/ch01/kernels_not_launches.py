"""1.3: counts the kernels a function uses, not their launches."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.3"
WHAT = "each kernel is counted once, however often it is launched"
WHY = (
    "LegalizeOps makes one PrimFunc for equal calls and calls it several times. Every call is "
    "a launch."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What launches a kernel”"


def launches(mod):
    found = {}
    for name, func in to_kernels(mod).functions_items():
        if isinstance(func, relax.Function):
            counter = CallCounter()
            counter.visit_expr(func)
            found[name.name_hint] = sum(call.split(":")[0] in LAUNCHING for call in counter.calls)
    return found
