"""0.5: all operators in one PrimFunc."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.5"
WHAT = "all operators become one PrimFunc"
WHY = (
    "LegalizeOps goes operator by operator. Making one kernel of several is fusion, a pass of "
    "its own, and the subject of this course."
)
READ = "chapters/ch00_first_module/lesson.md, “What is in it”"


def predicted_functions():
    return {"before": (1, 0), "after": (1, 1)}
