"""The numbers of an NVIDIA GPU that a schedule must respect: warps, memory, and what a multiprocessor holds at a time.

The limits of a multiprocessor are from the table "Technical Specifications per Compute Capability" of the CUDA C++
Programming Guide.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
BANKS, BANK_BYTES = 32, 4  # of shared memory: each bank serves one word at a time
SECTOR_BYTES = 32  # the unit in which global memory is read and written
VECTOR_BYTES = 16  # the widest load of a thread
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
STATIC_SHARED_BYTES = 48 * 1024  # per block, at most; more must be dynamic and asked for at launch


@dataclass(frozen=True)
class Multiprocessor:
    """What a multiprocessor has for all its blocks: threads, blocks, registers (32 bits each), bytes of shared memory.

    They are allocated in portions: a warp's registers in units of 256, warps in fours, and a block's shared memory in
    units of 128 bytes, plus 1 KiB that is reserved.
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

# KiB of dynamic shared memory that a block may ask for, by architecture; every GPU from sm_80 on has the smallest.
BLOCK_SHARED_BYTES = {"sm_80": 163, "sm_87": 163, "sm_90": 227, "sm_100": 227, "sm_103": 227}
LEAST_BLOCK_SHARED_BYTES = 99 * 1024


def block_shared_bytes(arch: str) -> int:
    """The shared memory that a block may ask for on `arch`, such as "sm_90a", sm_80 or later."""
    kib = BLOCK_SHARED_BYTES.get(arch.rstrip("af"))
    return kib * 1024 if kib else LEAST_BLOCK_SHARED_BYTES


def warp_step(dtype: str) -> int:
    """How many elements of `dtype` the 32 lanes of a warp load at a time, 16 bytes each."""
    return WARP * VECTOR_BYTES // ITEM_BYTES[dtype]
