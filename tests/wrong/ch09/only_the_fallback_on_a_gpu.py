"""9.5: on a GPU everything gets the fallback."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.5"
WHAT = "on a GPU the fallback comes first, so that it takes every kernel"
WHY = (
    "Each kernel then runs, one thread for each element of its result: no tile, no shared memory, no threads that add "
    "up together. The rules that know products and sums come before it."
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
    return [dl.ApplyDefaultSchedule(dl.gpu.Fallback())]
