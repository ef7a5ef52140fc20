"""1.3: never starts a new counter."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.3"
WHAT = "each function is charged with those before it"
WHY = (
    "A visitor keeps what it counted. One counter for all functions adds them up, which is "
    "right for the module and wrong for each function."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What launches a kernel”"


def launches(mod):
    found, counter = {}, CallCounter()
    for name, func in to_kernels(mod).functions_items():
        if isinstance(func, relax.Function):
            counter.visit_expr(func)
            kernels = (n for call, n in counter.calls.items() if call.split(":")[0] in LAUNCHING)
            found[name.name_hint] = sum(kernels)
    return found
