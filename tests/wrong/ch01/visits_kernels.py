"""1.1: visits PrimFuncs with a Relax visitor."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.1"
WHAT = "the visitor is given PrimFuncs, which it cannot walk over"
WHY = (
    "A module holds Relax functions and PrimFuncs. Relax visitors know Relax expressions only; "
    "ask isinstance(func, relax.Function) first."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A visitor walks everywhere”"


def count_calls(mod):
    counter = CallCounter()
    for func in mod.functions.values():
        counter.visit_expr(func)
    return dict(counter.calls)
