"""Counts the tests of one sum only."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.5"
WHAT = "the tests of a single sum"
WHY = "Every element of the result is a sum of its own, and each of its steps asks."
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “The init, taken apart”"


def init_work(m: int, n: int, k: int) -> dict[str, int]:
    return {"stores": m * n, "tests": k, "tests after": 0}
