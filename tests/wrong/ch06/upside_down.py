"""Divides the fast time by the slow one."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.7"
WHAT = "the speed-up upside down"
WHY = "How many times faster is the time without fusion over the time with it: more than 1 where fusing helps."
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Measure it”"


def predicted_speedup(k: int, operations_per_second: float, bytes_per_second: float) -> float:
    fused = 2 * k / operations_per_second + 8 / bytes_per_second
    return fused / (fused + 12 / bytes_per_second)
