"""Does not decompose."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.4"
WHAT = "the init left inside the block"
WHY = "Every step of every sum then asks whether it is the first one, in the innermost loop."
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “The init, taken apart”"


def scheduled(func: tirx.PrimFunc, rows: int, columns: int) -> Schedule:
    sch = Schedule(func)
    tile(sch, rows, columns)
    use_the_machine(sch)
    bias_at_the_tile(sch)
    return sch
