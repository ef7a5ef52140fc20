"""Does not look at spills."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.9"
WHAT = "a tile that spills"
WHY = (
    "Its sums do not fit into 255 registers, so some live in memory: a store and a load in the innermost "
    "loop, for what the tile was made large to avoid."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “What the compiler reports”"


def best_tile(compiled: Sequence[tuple[Tile, Resources]], arch: str) -> Tile:
    def fits(tile: Tile, used: Resources) -> bool:
        small = used.shared_bytes <= STATIC_SHARED_BYTES and math.prod(tile.threads) <= 1024
        return small and occupancy(used, math.prod(tile.threads), arch) > 0

    def cost(tile: Tile, used: Resources) -> tuple[float, float]:
        loads = 1 / tile.block_m + 1 / tile.block_n
        there = occupancy(used, math.prod(tile.threads), arch)
        return loads, -there

    sound = [pair for pair in compiled if fits(*pair)]
    if not sound:
        raise ValueError("No tile is sound.")
    return min(sound, key=lambda pair: cost(*pair))[0]
