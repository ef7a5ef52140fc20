"""0.6: NumPy's own dtype."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.6"
WHAT = "the arrays are float64, which NumPy makes unless it is told otherwise"
WHY = (
    "The type says float32, so the VM refuses each of them alone, whatever n is. Give the dtype: "
    'np.ones(shape, "float32").'
)
READ = "chapters/ch00_first_module/lesson.md, “When it must refuse”"


def refused():
    return np.ones((3, 16)), np.ones((5, 16))
