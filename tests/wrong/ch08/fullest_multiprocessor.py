"""Wants as many threads as can be."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.9"
WHAT = "the highest occupancy in place of the least traffic"
WHY = (
    "Threads are there to hide waiting. A thread with 64 sums of its own has enough to do in between; the "
    "smallest tile waits for memory with all of them."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “What the compiler reports”"


def best_tile(compiled: Sequence[tuple[Tile, Resources]], arch: str) -> Tile:
    def fits(tile: Tile, used: Resources) -> bool:
        small = used.shared_bytes <= STATIC_SHARED_BYTES and math.prod(tile.threads) <= 1024
        return (
            used.spill_store_bytes + used.spill_load_bytes == 0
            and small
            and occupancy(used, math.prod(tile.threads), arch) > 0
        )

    def cost(tile: Tile, used: Resources) -> tuple[float, float]:
        loads = 1 / tile.block_m + 1 / tile.block_n
        there = occupancy(used, math.prod(tile.threads), arch)
        return -there, loads

    sound = [pair for pair in compiled if fits(*pair)]
    if not sound:
        raise ValueError("No tile is sound.")
    return min(sound, key=lambda pair: cost(*pair))[0]
