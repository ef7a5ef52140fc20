"""1.6: counts distinct kernels."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.6"
WHAT = "calls of the same kernel are counted once"
WHY = (
    "Equal calls share one PrimFunc, and each of them launches it. The kernel is compiled once "
    "and runs as often as it is called."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What launches a kernel”"


def predicted_launches():
    return {"small": 6, "decode": 20}
