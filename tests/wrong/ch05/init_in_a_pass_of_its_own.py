"""Decomposes at the outermost loop."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.4"
WHAT = "the init taken out as far as it goes"
WHY = (
    "Before the loop over tiles, the init is a pass over all of temp, and its zeros have left the cache "
    "when the sums begin."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “The init, taken apart”"


def scheduled(func: tirx.PrimFunc, rows: int, columns: int) -> Schedule:
    sch = Schedule(func)
    tile(sch, rows, columns)
    use_the_machine(sch)
    bias_at_the_tile(sch)
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[0])
    return sch
