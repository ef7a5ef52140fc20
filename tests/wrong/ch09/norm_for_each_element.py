"""9.5: dlight's own rule for reductions on a CPU is used."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.5"
WHAT = "dlight's rule for reductions on a CPU is used as it is"
WHY = (
    "For one token it takes the elements of the norm for rows, and adds up all squares again for each of them. "
    "ReductionOnce declines there, and the fallback takes the kernel."
)
READ = "chapters/ch09_the_compiler/lesson.md, “When it must not fire”"


def schedule_phase(target, variable_bounds):
    if target.kind.name == "llvm":
        return [
            ScheduleMatmuls(target),
            FuseEpilogues(),
            dl.ApplyDefaultSchedule(dl.cpu.Reduction()),
            CPUFallback(),
            SmallKernelsAlone(variable_bounds),
        ]
    whole = [dl.gpu.Matmul(), GEMVWithinBounds(), dl.gpu.Reduction(), dl.gpu.GeneralReduction()]
    return [
        dl.ApplyDefaultSchedule(*whole),
        FuseEpilogues(),
        dl.ApplyDefaultSchedule(dl.gpu.Fallback()),
    ]
