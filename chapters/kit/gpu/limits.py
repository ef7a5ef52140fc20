"""The numbers of an NVIDIA GPU that a schedule must respect: warps, memory, and what a multiprocessor holds at a time.

What differs from architecture to architecture is in the table of `gpus.py`, with its sources.
"""

from __future__ import annotations

from chapters.kit.gpu.gpus import UnknownArchitectureError, architecture

WARP = 32
BANKS, BANK_BYTES = 32, 4  # of shared memory: each bank serves one word at a time
SECTOR_BYTES = 32  # the unit in which global memory is read and written
VECTOR_BYTES = 16  # the widest load of a thread
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
STATIC_SHARED_BYTES = 48 * 1024  # per block, at most; more must be dynamic and asked for at launch


LEAST_BLOCK_SHARED_BYTES = 99 * 1024  # every GPU from sm_80 on gives a block as much


def block_shared_bytes(arch: str) -> int:
    """The shared memory that a block may ask for on `arch`, such as "sm_90a", sm_80 or later.

    For an architecture that is newer than the table, as much as every GPU gives.
    """
    try:
        return architecture(arch).multiprocessor.block_shared_bytes
    except UnknownArchitectureError:
        return LEAST_BLOCK_SHARED_BYTES


def warp_step(dtype: str) -> int:
    """How many elements of `dtype` the 32 lanes of a warp load at a time, 16 bytes each."""
    return WARP * VECTOR_BYTES // ITEM_BYTES[dtype]
