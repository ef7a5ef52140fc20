"""Counts one operation for a multiplication and an addition."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.7"
WHAT = "one operation a step, not two"
WHY = (
    "Operations per second are given as they are usually counted: a multiplication and an addition are "
    "two."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Measure it”"


def predicted_speedup(k: int, operations_per_second: float, bytes_per_second: float) -> float:
    fused = k / operations_per_second + 8 / bytes_per_second
    return (fused + 12 / bytes_per_second) / fused
