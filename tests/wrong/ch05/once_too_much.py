"""Takes the bias to be added twice."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.7"
WHAT = "the bias taken to be added once too often"
WHY = "The addition stands in the step, and the step runs once for each k."
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “The forced one”"


def forced_error(c: np.ndarray, k: int) -> np.ndarray:
    return c
