"""Pads one element, whatever the width of a store."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.5"
WHAT = "a padding of one element"
WHY = (
    "It spreads the rows, and makes every second row begin at an address at which a vector cannot be "
    "stored."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “A copy that a block shares”"


def row_padding(block_k: int, step: int, item_bytes: int, vector: int) -> int:
    return 1
