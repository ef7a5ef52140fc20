"""Deletes the barrier between the copying and the reading."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.6"
WHAT = "the barrier between the copying and the reading, deleted"
WHY = (
    "Threads then read what others have not copied yet. That shows in the very first turn: a short test "
    "finds it."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “Break it”"


def without_barrier(source: str) -> str:
    before, _, after = source.rpartition("__syncthreads();")
    return before + after
