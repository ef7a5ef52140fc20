"""Gives ordinary inputs."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.8"
WHAT = "a test that does notice"
WHY = (
    "With more than one step the bias is added more than once, and a difference of (k - 1) times the bias "
    "is there to be seen."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “Break it”"


def blind_test() -> tuple[tuple[int, int, int], list[np.ndarray]]:
    random = np.random.default_rng(0)
    a, b = (random.integers(-128, 128, shape, dtype=np.int8) for shape in ((2, 5), (3, 5)))
    return (2, 3, 5), [a, b, np.full((2, 3), 7, np.int32)]
