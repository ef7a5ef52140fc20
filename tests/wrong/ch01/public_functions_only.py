"""1.1: leaves private functions out."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.1"
WHAT = "private functions are not counted"
WHY = (
    "Passes that fuse put each group into a private function. Its calls run like all others; "
    "leave them out and every fusion looks as if work had vanished."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A visitor walks everywhere”"


def count_calls(mod):
    counter = CallCounter()
    for func in mod.functions.values():
        public = func.attrs and "global_symbol" in func.attrs
        if isinstance(func, relax.Function) and public:
            counter.visit_expr(func)
    return dict(counter.calls)
