"""Computes the number of blocks by a division that rounds down."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.2"
WHAT = "a grid too small for the last elements"
WHY = (
    "300 elements in blocks of 128 are three blocks, not two. `split` refuses a product of factors below "
    "the extent; `None` rounds up, and guards what is too much."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “Blocks and threads”"


def bind_elementwise(sch: Schedule, block: SBlockRV, threads: int, vector: int) -> None:
    loop = sch.fuse(*sch.get_loops(block))
    elements = math.prod(int(axis.dom.extent) for axis in sch.get(block).iter_vars)
    blocks = max(elements // (threads * vector), 1)
    grid, thread, lane = sch.split(loop, [blocks, threads, vector])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)
