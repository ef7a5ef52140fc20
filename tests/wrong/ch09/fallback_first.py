"""9.5: the fallback takes everything."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.5"
WHAT = "on a CPU the fallback runs first"
WHY = (
    "It takes any kernel and marks it as scheduled, so that the schedules that know better find "
    "nothing left."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Schedule”"


def schedule_phase(target, variable_bounds):
    if target.kind.name == "llvm":
        return [
            CPUFallback(),
            ScheduleMatmuls(target),
            FuseEpilogues(),
            dl.ApplyDefaultSchedule(ReductionOnce()),
            SmallKernelsAlone(variable_bounds),
        ]
    whole = [dl.gpu.Matmul(), GEMVWithinBounds(), dl.gpu.Reduction(), dl.gpu.GeneralReduction()]
    return [
        dl.ApplyDefaultSchedule(*whole),
        FuseEpilogues(),
        dl.ApplyDefaultSchedule(dl.gpu.Fallback()),
    ]
