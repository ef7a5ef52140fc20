"""1.6: expects dead code to vanish by itself."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.6"
WHAT = "one of Small's launches is missing, for example that of the call whose result nobody uses"
WHY = (
    "Nothing in this pipeline removes an unused call: dead code elimination is a pass like any other. "
    "Nor does it merge two calls into one kernel, or make a view of a split; only a reshape becomes one."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What launches a kernel”"


def predicted_launches():
    return {"small": 6, "decode": 63}
