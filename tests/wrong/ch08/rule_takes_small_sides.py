"""Leaves small matrices to TVM's rule as well."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.12"
WHAT = "a rule that is trusted with 16 rows"
WHY = "The rule tensorizes nothing with a side of 64 or less; it would pad 16 rows to 128 for it."
READ = "chapters/ch08_gpu_targets/lesson.md, “Which comes first”"


def choose_kernel(m: int, n: int, k: int, dtype: str, target: Target) -> str:
    generation = int("".join(c for c in str(target.attrs["arch"]) if c.isdigit()))
    first = {"float16": 70, "bfloat16": 80}.get(dtype)
    cores = first is not None and generation >= first
    tile = WarpTile()
    whole = m % tile.block_m == n % tile.block_n == k % tile.block_k == 0
    if m == 1 and k % (WARP * VECTOR_BYTES // ITEM_BYTES[dtype]) == 0:
        return "decode"
    if cores and whole:
        return "tensor_cores"
    if cores and dtype == "float16" and m > 1:
        return "dlight"
    return "registers"
