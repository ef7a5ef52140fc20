"""1.1: looks at main alone."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.1"
WHAT = "only the function called main is counted"
WHY = (
    "A module has no main function unless somebody calls one so. A decoder has prefill and "
    "decode, and what a pass fused stands in private functions of its own."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A visitor walks everywhere”"


def count_calls(mod):
    counter = CallCounter()
    for name, func in mod.functions_items():
        if name.name_hint == "main":
            counter.visit_expr(func)
    return dict(counter.calls)
