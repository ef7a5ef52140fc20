"""Binds no thread to the copy's loops."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.5"
WHAT = "a copy that every thread makes alone"
WHY = (
    "A loop that is bound to no thread is run by each of them: 64 threads load and store the same tile, "
    "64 times."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “A copy that a block shares”"


def stage_in_shared(
    sch: Schedule, block: SBlockRV, name: str, at: LoopRV, tile: Tile, padding: int
) -> SBlockRV:
    reads = [str(region.source.name) for region in sch.get(block).reads]
    copy = sch.cache_read(block, reads.index(name), "shared")
    sch.compute_at(copy, at)
    elements = sch.fuse(*sch.get_loops(copy)[-2:])
    _, lane = sch.split(elements, [None, tile.vector])
    sch.vectorize(lane)
    sch.storage_align(copy, 0, axis=-2, factor=tile.block_k, offset=padding)
    return copy
