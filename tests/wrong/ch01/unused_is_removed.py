"""1.6: expects dead code to vanish by itself."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.6"
WHAT = "a call whose result is unused is expected not to run"
WHY = (
    "Nothing in this pipeline removes it. Dead code elimination is a pass like any other; "
    "chapter 9 puts one where it is needed."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “What launches a kernel”"


def predicted_launches():
    return {"small": 6, "decode": 63}
