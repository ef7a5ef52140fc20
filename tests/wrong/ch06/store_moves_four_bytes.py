"""Counts four bytes for a store."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.7"
WHAT = "a store counted as four bytes"
WHY = (
    "Before it changes a part of a cache line, the processor reads the line: a store of four bytes moves "
    "eight."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Measure it”"


def predicted_speedup(k: int, operations_per_second: float, bytes_per_second: float) -> float:
    fused = 2 * k / operations_per_second + 4 / bytes_per_second
    return (fused + 8 / bytes_per_second) / fused
