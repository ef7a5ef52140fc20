"""Believes every measurement."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.13"
WHAT = "a kernel that is faster than the machine"
WHY = (
    "More than the limit is not speed but a mistake: work that was skipped, data from a cache, a rate of "
    "another clock."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “Measure it”"


def share_of_limit(
    seconds: float, operations: float, moved: float, rate: float, bandwidth: float
) -> tuple[float, str]:
    by_memory, by_arithmetic = moved / bandwidth, operations / rate
    limit = max(by_memory, by_arithmetic)
    return min(limit / seconds, 1.0), "memory" if by_memory >= by_arithmetic else "arithmetic"
