"""1.3: counts every call that is left after lowering."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.3"
WHAT = "calls that run no kernel are counted as launches"
WHY = (
    "A reshape that became a view, or a call of another Relax function, launches nothing "
    "itself. Three operators launch kernels, those in LAUNCHING."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What launches a kernel”"


def launches(mod):
    found = {}
    for name, func in to_kernels(mod).functions_items():
        if isinstance(func, relax.Function):
            counter = CallCounter()
            counter.visit_expr(func)
            found[name.name_hint] = counter.calls.total()
    return found
