"""Makes two halves and leaves the copies ordinary loads."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.7"
WHAT = "a pipeline without asynchronous copies"
WHY = (
    "Two halves are there, but a thread still waits for its loads before it computes: the store to shared "
    "memory needs their values. cp.async needs no register and no waiting."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “Copies under way”"


def overlap_copies(sch: Schedule, k0: LoopRV) -> None:
    sch.annotate(k0, "software_pipeline_stage", [0, 0, 1])
    sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
