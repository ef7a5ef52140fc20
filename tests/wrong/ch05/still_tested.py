"""Takes the decomposed program to test as well."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.5"
WHAT = "a test that survives the decomposition"
WHY = (
    "After decompose_reduction the init is a block with loops of its own, which runs before the first "
    "step. Nothing is left to ask."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “The init, taken apart”"


def init_work(m: int, n: int, k: int) -> dict[str, int]:
    return {"stores": m * n, "tests": m * n * k, "tests after": m * n}
