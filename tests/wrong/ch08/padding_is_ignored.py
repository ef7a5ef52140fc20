"""Does not align the copy's rows."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.5"
WHAT = "a padding that is computed and not used"
WHY = (
    "`storage_align` is what makes rows begin elsewhere; without it, a row begins where the last one "
    "ends."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “A copy that a block shares”"


def stage_in_shared(
    sch: Schedule, block: SBlockRV, name: str, at: LoopRV, tile: Tile, padding: int
) -> SBlockRV:
    reads = [str(region.source.name) for region in sch.get(block).reads]
    copy = sch.cache_read(block, reads.index(name), "shared")
    sch.compute_at(copy, at)
    elements = sch.fuse(*sch.get_loops(copy)[-2:])
    _, y, x, lane = sch.split(elements, [None, *tile.threads, tile.vector])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.vectorize(lane)
    return copy
