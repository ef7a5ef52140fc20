"""Leaves the innermost loop as it is."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.2"
WHAT = "a thread's elements loaded one by one"
WHY = (
    "A serial loop of 4 loads is four instructions, each of which touches every sector of the warp. "
    "`vectorize` makes one of them."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “Blocks and threads”"


def bind_elementwise(sch: Schedule, block: SBlockRV, threads: int, vector: int) -> None:
    loop = sch.fuse(*sch.get_loops(block))
    grid, thread, _ = sch.split(loop, [None, threads, vector])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
