"""9.5: SmallKernelsAlone is missing."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.5"
WHAT = "small kernels wake threads"
WHY = (
    "A decode step has many kernels of a few thousand steps. Each would wait for threads longer than "
    "it computes."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Schedule”"


def schedule_phase(target, variable_bounds):
    if target.kind.name == "llvm":
        return [
            ScheduleMatmuls(target),
            FuseEpilogues(),
            dl.ApplyDefaultSchedule(ReductionOnce()),
            CPUFallback(),
        ]
    whole = [dl.gpu.Matmul(), GEMVWithinBounds(), dl.gpu.Reduction(), dl.gpu.GeneralReduction()]
    return [
        dl.ApplyDefaultSchedule(*whole),
        FuseEpilogues(),
        dl.ApplyDefaultSchedule(dl.gpu.Fallback()),
    ]
