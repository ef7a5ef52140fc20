"""1.3: looks for a kernel's call among LAUNCHING by its whole name."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.3"
WHAT = "the whole name of a call is looked for in LAUNCHING"
WHY = (
    "CallCounter counts `relax.call_tir:matmul`, with the kernel's name after a colon; LAUNCHING holds what "
    "stands before it."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What launches a kernel”"


def launches(mod):
    found = {}
    for name, func in to_kernels(mod).functions_items():
        if isinstance(func, relax.Function):
            counter = CallCounter()
            counter.visit_expr(func)
            found[name.name_hint] = sum(n for call, n in counter.calls.items() if call in LAUNCHING)
    return found
