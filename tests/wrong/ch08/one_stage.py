"""Puts all three statements into one stage."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.7"
WHAT = "copies and steps in the same stage"
WHY = (
    "Statements of one stage belong to the same block of k. Only what stands in an earlier stage runs "
    "ahead."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “Copies under way”"


def overlap_copies(sch: Schedule, k0: LoopRV) -> None:
    sch.annotate(k0, "software_pipeline_stage", [0, 0, 0])
    sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
    sch.annotate(k0, "software_pipeline_async_stages", [0])
