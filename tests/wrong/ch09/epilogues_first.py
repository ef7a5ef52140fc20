"""9.5: on a GPU epilogues are fused before dlight's rules."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.5"
WHAT = "on a GPU epilogues are fused before dlight's rules have run"
WHY = (
    "dlight's rules know the attention scores as a product and what follows it. Of one nest with a "
    "condition in it they can make nothing: one rule fails, the others decline."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Schedule”"


def schedule_phase(target, variable_bounds):
    if target.kind.name == "llvm":
        return [
            ScheduleMatmuls(target),
            FuseEpilogues(),
            dl.ApplyDefaultSchedule(ReductionOnce()),
            CPUFallback(),
            SmallKernelsAlone(variable_bounds),
        ]
    whole = [dl.gpu.Matmul(), GEMVWithinBounds(), dl.gpu.Reduction(), dl.gpu.GeneralReduction()]
    return [
        FuseEpilogues(),
        dl.ApplyDefaultSchedule(*whole),
        dl.ApplyDefaultSchedule(dl.gpu.Fallback()),
    ]
