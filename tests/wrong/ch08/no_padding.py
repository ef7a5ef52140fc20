"""Pads nothing."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.5"
WHAT = "rows that all begin in the same banks"
WHY = (
    "A row of 32 bytes is 8 words: every fourth row begins in the same bank, and of rows read four apart "
    "all do. The reads of a warp then take 16 turns."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “A copy that a block shares”"


def row_padding(block_k: int, step: int, item_bytes: int, vector: int) -> int:
    return 0
