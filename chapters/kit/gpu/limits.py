"""The numbers of an NVIDIA GPU that a schedule must respect: warps, memory, and what a multiprocessor holds at a time.

What a multiprocessor holds is from the table "Technical Specifications per Compute Capability" of the CUDA C++
Programming Guide.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
BANKS, BANK_BYTES = 32, 4  # of shared memory: a warp reaches each bank once at a time
SECTOR_BYTES = 32  # global memory answers in sectors
VECTOR_BYTES = 16  # the widest load of a thread
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# of a block; a kernel asks for more when it is launched, with dynamic shared memory
STATIC_SHARED_BYTES = 48 * 1024


@dataclass(frozen=True)
class Multiprocessor:
    """threads, blocks, registers (32 bits each) and shared_bytes that are there at a time, for all blocks together.

    The hardware hands them out in portions: a warp gets registers by 256, warps come by fours, and a block gets shared
    memory by 128 bytes, with 1 KiB on top that is reserved.
    """

    threads: int
    blocks: int
    registers: int
    shared_bytes: int
    register_portion: int = 256
    warp_portion: int = 4
    shared_portion: int = 128
    shared_reserved: int = 1024


LIMITS = {
    "sm_80": Multiprocessor(2048, 32, 65536, 164 * 1024),
    "sm_90a": Multiprocessor(2048, 32, 65536, 228 * 1024),
    "sm_100a": Multiprocessor(2048, 32, 65536, 228 * 1024),
}


def warp_step(dtype: str) -> int:
    """How many elements of `dtype` the 32 lanes of a warp load at a time, each a vector of 16 bytes."""
    return WARP * VECTOR_BYTES // ITEM_BYTES[dtype]
