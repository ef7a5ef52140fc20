"""1.1: loops over the body's blocks instead of visiting."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.1"
WHAT = "only the bindings at the top of each function are counted"
WHY = (
    "func.body.blocks holds the outermost bindings. The branches of an if, an inner function "
    "and nested calls are expressions inside those bindings, and a visitor goes into all of "
    "them."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A visitor walks everywhere”"


def count_calls(mod):
    calls = Counter()
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            for block in func.body.blocks:
                for binding in block.bindings:
                    if isinstance(binding.value, relax.Call):
                        calls[call_name(binding.value)] += 1
    return dict(calls)
