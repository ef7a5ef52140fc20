"""Takes the init to run at every step."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.5"
WHAT = "an init that runs at every step"
WHY = "Then no sum would ever have more than its last term. The init runs at the first step of each sum."
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “The init, taken apart”"


def init_work(m: int, n: int, k: int) -> dict[str, int]:
    return {"stores": m * n * k, "tests": m * n * k, "tests after": 0}
