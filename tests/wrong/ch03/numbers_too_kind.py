"""3.6: the right module, with numbers that show nothing."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *
from solutions.ch03_transpose_matmul.fuse_transpose_matmul import deceives_careless as _right

EXERCISE = "3.6"
WHAT = "the arguments are so regular that the wrong elements have the right values"
WHY = (
    "In a w of ones every element is like every other, so it does not matter which one is read. Use "
    "random numbers."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Break it”"


def deceives_careless():
    mod, arrays = _right()
    return mod, [np.ones_like(array) for array in arrays]
