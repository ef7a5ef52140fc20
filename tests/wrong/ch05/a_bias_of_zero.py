"""Gives a bias of zeros."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.8"
WHAT = "a bias of zeros"
WHY = (
    "True, that test sees nothing either, and most people would see it. Find one whose inputs look like "
    "any others."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Break it”"


def blind_test() -> tuple[tuple[int, int, int], list[np.ndarray]]:
    random = np.random.default_rng(0)
    a, b = (random.integers(-128, 128, shape, dtype=np.int8) for shape in ((2, 5), (3, 5)))
    return (2, 3, 5), [a, b, np.zeros((2, 3), np.int32)]
