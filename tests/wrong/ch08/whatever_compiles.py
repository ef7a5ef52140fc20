"""Takes whatever spills nothing."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.9"
WHAT = "a kernel that does not fit"
WHY = (
    "48 KiB of static shared memory a block, and the registers of a multiprocessor, are limits of the "
    "launch: the compiler says nothing of them."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “What the compiler reports”"


def best_tile(compiled: Sequence[tuple[Tile, Resources]], arch: str) -> Tile:
    def fits(tile: Tile, used: Resources) -> bool:
        return used.spill_store_bytes + used.spill_load_bytes == 0

    def cost(tile: Tile, used: Resources) -> tuple[float, float]:
        loads = 1 / tile.block_m + 1 / tile.block_n
        there = occupancy(used, math.prod(tile.threads), arch)
        return loads, -there

    sound = [pair for pair in compiled if fits(*pair)]
    if not sound:
        raise ValueError("No tile is sound.")
    return min(sound, key=lambda pair: cost(*pair))[0]
