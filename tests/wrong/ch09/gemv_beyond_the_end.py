"""9.5: dlight's own GEMV rule is used."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.5"
WHAT = "dlight's GEMV rule is used as it is"
WHY = (
    "Its last block of threads stores all of its results, also those beyond the end. GEMVWithinBounds "
    "declines where that would happen."
)
READ = "chapters/ch09_the_compiler/lesson.md, “When it must not fire”"


def schedule_phase(target, variable_bounds):
    if target.kind.name == "llvm":
        return [
            ScheduleMatmuls(target),
            FuseEpilogues(),
            dl.ApplyDefaultSchedule(ReductionOnce()),
            CPUFallback(),
            SmallKernelsAlone(variable_bounds),
        ]
    whole = [dl.gpu.Matmul(), dl.gpu.GEMV(), dl.gpu.Reduction(), dl.gpu.GeneralReduction()]
    return [
        dl.ApplyDefaultSchedule(*whole),
        FuseEpilogues(),
        dl.ApplyDefaultSchedule(dl.gpu.Fallback()),
    ]
