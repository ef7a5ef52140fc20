"""Takes the init out before the bias is moved to a loop of `matmul`."""

from solutions.ch05_schedules_and_their_limits.schedules import *

EXERCISE = "5.4"
WHAT = "decompose_reduction before the bias is moved to the tile"
WHY = (
    "decompose_reduction leaves two blocks, `matmul_init` and `matmul_update`, and none called `matmul`: "
    "whoever asks for its loops comes before."
)
READ = "chapters/ch05_schedules_and_their_limits/lesson.md, “The init, taken apart”"


def scheduled(func: tirx.PrimFunc, rows: int, columns: int) -> Schedule:
    sch = Schedule(func)
    step = tile(sch, rows, columns)[2]
    use_the_machine(sch)
    sch.decompose_reduction("matmul", step)
    bias_at_the_tile(sch)
    return sch
