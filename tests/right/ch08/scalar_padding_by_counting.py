"""Finds the padding by laying the 32 rows out and counting banks, without a greatest common divisor."""

from solutions.ch08_gpu_targets.gpu_schedules import *


def row_padding(block_k: int, step: int, item_bytes: int, vector: int) -> int:
    best, found = 0, 0
    for padding in range(0, BANKS * vector, vector):
        row_bytes = (block_k + padding) * item_bytes
        if row_bytes % BANK_BYTES:
            continue
        banks = {row * step * row_bytes // BANK_BYTES % BANKS for row in range(32)}
        if len(banks) > found:
            best, found = padding, len(banks)
    return best


def choose_kernel(m: int, n: int, k: int, dtype: str, target: Target) -> str:
    arch = int(str(target.attrs["arch"]).removeprefix("sm_").rstrip("af"))
    tile = WarpTile()
    vector = VECTOR_BYTES // ITEM_BYTES[dtype]
    fits = not (m % tile.block_m or n % tile.block_n or k % tile.block_k)
    half = (dtype == "float16" and arch >= 70) or (dtype == "bfloat16" and arch >= 80)
    rule = dtype == "float16" and arch >= 70 and m > 64 and n > 64 and k > 64
    if m == 1 and not k % (WARP * vector):
        return "decode"
    return "tensor_cores" if half and fits else "dlight" if rule else "registers"
