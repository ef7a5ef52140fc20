"""Adds the two lower bounds."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.13"
WHAT = "the time of loading plus the time of computing"
WHY = (
    "A GPU loads while it computes, so the longer of the two is the limit. The sum is what a kernel "
    "without overlap takes."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “Measure it”"


def share_of_limit(
    seconds: float, operations: float, moved: float, rate: float, bandwidth: float
) -> tuple[float, str]:
    by_memory, by_arithmetic = moved / bandwidth, operations / rate
    limit = by_memory + by_arithmetic
    if seconds < limit / 1.05:
        raise ValueError("One of the measurements is wrong.")
    return min(limit / seconds, 1.0), "memory" if by_memory >= by_arithmetic else "arithmetic"
