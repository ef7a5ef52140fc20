"""9.5: dlight's rule for reductions comes before the epilogues."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.5"
WHAT = "on a CPU the rule for reductions comes before the epilogues are fused"
WHY = (
    "It takes the attention scores, a product and what scales and masks it, and keeps the sums in a tensor of their "
    "own. Fused first, they are one block, which the rule leaves to the fallback."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Schedule”"


def schedule_phase(target, variable_bounds):
    if target.kind.name == "llvm":
        return [
            ScheduleMatmuls(target),
            dl.ApplyDefaultSchedule(ReductionOnce()),
            FuseEpilogues(),
            CPUFallback(),
            SmallKernelsAlone(variable_bounds),
        ]
    whole = [dl.gpu.Matmul(), GEMVWithinBounds(), dl.gpu.Reduction(), dl.gpu.GeneralReduction()]
    return [
        dl.ApplyDefaultSchedule(*whole),
        FuseEpilogues(),
        dl.ApplyDefaultSchedule(dl.gpu.Fallback()),
    ]
