"""5.8: arrays without any element."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.8"
WHAT = "a test without rows"
WHY = "Nothing is computed, so nothing can be wrong: that says nothing of this program's mistake."
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Break it”"


def blind_test():
    arrays = [np.zeros((0, 4), "int8"), np.zeros((2, 4), "int8"), np.zeros((0, 2), "int32")]
    return (0, 2, 4), arrays
