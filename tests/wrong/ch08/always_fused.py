"""Fuses first, always."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.12"
WHAT = "a fusion that costs the tensor cores"
WHY = (
    "The bias saves one pass over D; the tensor cores are ten times the arithmetic. TVM's rule declines "
    "the fused block, so where only that rule reaches them, the bias waits."
)
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
    return "registers"
