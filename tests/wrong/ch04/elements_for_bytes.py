"""4.4: takes 16 elements for 16 bytes."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.4"
WHAT = "a vector has 16 elements, not 16 bytes"
WHY = (
    "A load is 16 bytes wide: 8 elements of 2 bytes, 4 of 4. TVM splits a wider one, so it "
    "costs nothing but registers and the divisibility it asks for."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Sixteen bytes at a time”"


def plan_threads(hidden_size, dtype, limit):
    vector = 16 if hidden_size % 16 == 0 else 1
    vectors = hidden_size // vector
    threads = fit_threads(vectors, min(limit, math.ceil(vectors / (4 * WARP)) * WARP))
    return Plan(threads, vector, rows=max(1, min(limit, 128) // threads))
