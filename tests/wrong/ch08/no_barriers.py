"""Deletes both barriers."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.6"
WHAT = "both barriers deleted"
WHY = "One of the two shows at once. Which one does not?"
READ = "chapters/ch08_gpu_targets/lesson.md, “Break it”"


def without_barrier(source: str) -> str:
    return source.replace("__syncthreads();", "")
