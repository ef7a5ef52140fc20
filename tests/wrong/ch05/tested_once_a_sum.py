"""Takes the test to be made once a sum."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.5"
WHAT = "the test for the first step made once a sum"
WHY = (
    "The test stands inside the block, and the block runs at every step: that is what decompose_reduction "
    "removes."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “The init, taken apart”"


def init_work(m: int, n: int, k: int) -> dict[str, int]:
    return {"stores": m * n, "tests": m * n, "tests after": 0}
