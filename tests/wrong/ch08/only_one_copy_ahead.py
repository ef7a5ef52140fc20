"""Lets only the copy of A run ahead."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.7"
WHAT = "a pipeline for A alone"
WHY = "The copy of B stands in stage 1 with the steps, and is waited for in every turn."
READ = "chapters/ch08_gpu_targets/lesson.md, “Copies under way”"


def overlap_copies(sch: Schedule, k0: LoopRV) -> None:
    sch.annotate(k0, "software_pipeline_stage", [0, 1, 1])
    sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
    sch.annotate(k0, "software_pipeline_async_stages", [0])
