"""Divides the separate pass by the fused program."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.7"
WHAT = "the pass alone compared with the fused program"
WHY = "The program without fusion does both: the same matmul, and then the pass."
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Measure it”"


def predicted_speedup(k: int, operations_per_second: float, bytes_per_second: float) -> float:
    fused = 2 * k / operations_per_second + 8 / bytes_per_second
    return (12 / bytes_per_second) / fused
