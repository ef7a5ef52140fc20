"""Gives each thread consecutive vectors."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.5"
WHAT = "a run of vectors for each thread"
WHY = (
    "Thread 0 takes the first run of the tile and thread 1 the next: in one instruction, the threads of a "
    "warp load far from each other."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “A copy that a block shares”"


def stage_in_shared(
    sch: Schedule, block: SBlockRV, name: str, at: LoopRV, tile: Tile, padding: int
) -> SBlockRV:
    reads = [str(region.source.name) for region in sch.get(block).reads]
    copy = sch.cache_read(block, reads.index(name), "shared")
    sch.compute_at(copy, at)
    elements = sch.fuse(*sch.get_loops(copy)[-2:])
    y, x, _, lane = sch.split(elements, [*tile.threads, None, tile.vector])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.vectorize(lane)
    sch.storage_align(copy, 0, axis=-2, factor=tile.block_k, offset=padding)
    return copy
