"""Forgets the size of an element."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.3"
WHAT = "elements counted as bytes"
WHY = "A float16 is two bytes, a float32 four."
READ = "chapters/ch08_gpu_targets/lesson.md, “A copy that a block shares”"


def bytes_loaded(m: int, n: int, k: int, tile: Tile, item_bytes: int) -> dict[str, int]:
    blocks = (m // tile.block_m) * (n // tile.block_n)
    return {"naive": m * n * 2 * k, "tiled": blocks * (tile.block_m + tile.block_n) * k}
