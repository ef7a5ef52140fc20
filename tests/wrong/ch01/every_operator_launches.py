"""1.6: counts operators."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.6"
WHAT = "every operator is counted as a launch, views too"
WHY = (
    "A reshape inside a dataflow block becomes a view: other extents over the same memory, and "
    "no kernel."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What launches a kernel”"


def predicted_launches():
    return {"small": 9, "decode": 3 * 22 + 3}
