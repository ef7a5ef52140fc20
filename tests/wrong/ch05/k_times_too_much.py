"""Counts the bias that belongs there as an error too."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.7"
WHAT = "an error of k times the bias"
WHY = (
    "The bias is in the result k times, and once it should be there: what is too much is one less."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “The forced one”"


def forced_error(c: np.ndarray, k: int) -> np.ndarray:
    return k * c
