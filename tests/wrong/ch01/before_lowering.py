"""1.3: counts in the module as it was given."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.3"
WHAT = "launches are counted before the module is lowered"
WHY = (
    "relax.add is no kernel yet, and relax.reshape may never be one. Lower first, then count "
    "what calls kernels."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What launches a kernel”"


def launches(mod):
    found = {}
    for name, func in mod.functions_items():
        if isinstance(func, relax.Function):
            counter = CallCounter()
            counter.visit_expr(func)
            kernels = (n for call, n in counter.calls.items() if call.split(":")[0] in LAUNCHING)
            found[name.name_hint] = sum(kernels)
    return found
