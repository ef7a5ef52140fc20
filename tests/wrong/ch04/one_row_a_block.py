"""4.4: never more than one row a block."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *
from solutions.ch04_add_rms_norm.fuse_add_norm import plan_threads as sound_plan

EXERCISE = "4.4"
WHAT = "short rows get a block each"
WHY = (
    "A multiprocessor holds a limited number of blocks. Blocks of one warp leave most of its "
    "threads unused."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Sixteen bytes at a time”"


def plan_threads(hidden_size, dtype, limit):
    plan = sound_plan(hidden_size, dtype, limit)
    return Plan(plan.threads, plan.vector, 1)
