"""4.4: a whole block a row."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.4"
WHAT = "every row gets all the threads a block may have"
WHY = (
    "A row of 1000 has 125 vectors: of 1024 threads 899 would idle, hold registers, and wait "
    "at each barrier."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Sixteen bytes at a time”"


def plan_threads(hidden_size, dtype, limit):
    vector = VECTOR_BYTES // ITEM_BYTES[dtype]
    return Plan(limit, vector if hidden_size % vector == 0 else 1, 1)
