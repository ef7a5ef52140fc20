"""1.1: counts by call.op.name."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.1"
WHAT = "each call is taken to be a call of an operator, whose name is call.op.name"
WHY = (
    "call.op may also be a function of the module (a GlobalVar has name_hint) or a packed function. "
    "call_name(call), given above, knows them all."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A visitor walks everywhere”"


@visitor
class ByName(PyExprVisitor):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def visit_call_(self, call):
        self.calls[call.op.name] += 1
        super().visit_call_(call)


def count_calls(mod):
    counter = ByName()
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            counter.visit_expr(func)
    return dict(counter.calls)
