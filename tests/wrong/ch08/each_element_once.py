"""Counts each element of A and B once."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.3"
WHAT = "the bytes there are, not the bytes that are loaded"
WHY = (
    "A thread knows nothing of what another has loaded. Rows of A are read again for every column, by the "
    "naive kernel, and for every tile, by the tiled one."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “A copy that a block shares”"


def bytes_loaded(m: int, n: int, k: int, tile: Tile, item_bytes: int) -> dict[str, int]:
    once = (m + n) * k * item_bytes
    return {"naive": m * n * 2 * k * item_bytes, "tiled": once}
