"""0.6: both have the same number of rows."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.6"
WHAT = "the two arrays have the same number of rows"
WHY = "Then n has one value and nothing is to be refused."
READ = "chapters/ch00_first_module/lesson.md, “Break it”"


def refused():
    return np.ones((3, 16), "float32"), np.ones((3, 16), "float32")
