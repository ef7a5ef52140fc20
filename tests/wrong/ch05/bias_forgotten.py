"""Leaves the bias in its own pass, unscheduled."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.4"
WHAT = "a schedule without the bias at the tile"
WHY = "All three functions are parts of this one; the bias is still a second pass over memory."
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “The init, taken apart”"


def scheduled(func: tirx.PrimFunc, rows: int, columns: int) -> Schedule:
    sch = Schedule(func)
    tile(sch, rows, columns)
    use_the_machine(sch)
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[1])
    return sch
