"""1.1: overrides visit_call_ and notes nothing."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.1"
WHAT = "the calls are visited, and none is counted"
WHY = (
    "super().visit_call_(call) only goes on into the call. What you want to know of it, you note "
    "yourself: self.calls is the Counter, call_name(call) the key."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A visitor walks everywhere”"


@visitor
class Silent(PyExprVisitor):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def visit_call_(self, call):
        super().visit_call_(call)


def count_calls(mod):
    counter = Silent()
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            counter.visit_expr(func)
    return dict(counter.calls)
