"""0.6: the columns differ."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.6"
WHAT = "an array is illegal on its own"
WHY = (
    "16 is a number in the type; an array with another number of columns is refused before n "
    "is ever looked at."
)
READ = "chapters/ch00_first_module/lesson.md, “Break it”"


def refused():
    return np.ones((3, 16), "float32"), np.ones((3, 8), "float32")
