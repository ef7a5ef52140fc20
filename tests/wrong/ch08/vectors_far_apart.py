"""Gives each thread a run of elements of its own, a block's length apart."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.2"
WHAT = "threads that are far from each other"
WHY = (
    "A thread's neighbour in the warp is another thread, not its own next element. Neighbouring threads "
    "with far addresses fetch a sector each."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “Blocks and threads”"


def bind_elementwise(sch: Schedule, block: SBlockRV, threads: int, vector: int) -> None:
    loop = sch.fuse(*sch.get_loops(block))
    thread, grid, lane = sch.split(loop, [threads, None, vector])
    sch.reorder(grid, thread, lane)
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)
