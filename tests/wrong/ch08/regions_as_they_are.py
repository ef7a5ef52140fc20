"""Does not refresh the regions."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.4"
WHAT = "an update that declares to read the bias"
WHY = (
    "`decompose_reduction` leaves the update with the reads of the whole block, the bias among them, and the init "
    "with none. `tensorize` compares regions, and refuses."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “Tiles in registers”"


def tile_and_bind(sch: Schedule, block: SBlockRV, tile: Tile) -> LoopRV:
    stored = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    rows, columns = tile.threads
    i_block, i_thread, i_own = sch.split(i, [None, rows, tile.thread_m])
    j_block, j_thread, j_own = sch.split(j, [None, columns, tile.thread_n])
    k0, k1 = sch.split(k, [None, tile.block_k])
    sch.reorder(i_block, j_block, i_thread, j_thread, k0, k1, i_own, j_own)
    tags = ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x")
    for loop, tag in zip((i_block, j_block, i_thread, j_thread), tags, strict=True):
        sch.bind(loop, tag)
    sch.unroll(i_own)
    sch.unroll(j_own)
    sch.reverse_compute_at(stored, j_thread, preserve_unit_loops=True)
    _, lane = sch.split(sch.get_loops(stored)[-1], [None, math.gcd(tile.thread_n, 4)])
    sch.vectorize(lane)
    sch.decompose_reduction(block, k0)
    return k0
