"""1.1: overrides visit_call_ and goes no deeper."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.1"
WHAT = "the visitor stops at each call it counts"
WHY = (
    "visit_call_ is what goes on into a call's arguments. Overridden, it goes nowhere unless "
    "it calls super().visit_call_(call)."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A visitor walks everywhere”"


@visitor
class Shallow(PyExprVisitor):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def visit_call_(self, call):
        self.calls[call_name(call)] += 1


def count_calls(mod):
    counter = Shallow()
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            counter.visit_expr(func)
    return dict(counter.calls)
