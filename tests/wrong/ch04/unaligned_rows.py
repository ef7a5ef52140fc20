"""4.4: loads 16 bytes whatever the row's length."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.4"
WHAT = "vectors are as wide as can be, also where they do not divide a row"
WHY = (
    "The second row then starts at an address that is no multiple of 16, and a GPU stops at "
    "such a load. The elements left over at the end of the row are lost, besides."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Sixteen bytes at a time”"


def plan_threads(hidden_size, dtype, limit):
    vector = VECTOR_BYTES // ITEM_BYTES[dtype]
    vectors = max(1, hidden_size // vector)
    threads = fit_threads(vectors, min(limit, math.ceil(vectors / (4 * WARP)) * WARP))
    return Plan(threads, vector, rows=max(1, min(limit, 128) // threads))
