"""1.3: knows one of the three ways of launching."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.3"
WHAT = "only call_tir is counted"
WHY = (
    "call_tir_inplace writes into one of its arguments and call_dps_packed calls a library. "
    "Both run a kernel; a decoder appends to its cache with the first."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What launches a kernel”"


def launches(mod):
    found = {}
    for name, func in to_kernels(mod).functions_items():
        if isinstance(func, relax.Function):
            counter = CallCounter()
            counter.visit_expr(func)
            found[name.name_hint] = sum(
                n for call, n in counter.calls.items() if call.startswith("relax.call_tir:")
            )
    return found
