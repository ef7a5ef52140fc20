"""1.1: looks main up by name."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.1"
WHAT = 'mod["main"] is asked for, and a module need not have a main'
WHY = (
    "A decoder has prefill and decode, and what a pass fused stands in private functions of its own. "
    "mod.functions holds them all."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A visitor walks everywhere”"


def count_calls(mod):
    counter = CallCounter()
    counter.visit_expr(mod["main"])
    return dict(counter.calls)
