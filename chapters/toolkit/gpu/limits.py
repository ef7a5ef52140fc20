"""What one streaming multiprocessor of an NVIDIA GPU holds at a time, by architecture.

From the table "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
STATIC_SHARED_BYTES = (
    48 * 1024
)  # of a block; a kernel asks for more when it is launched, with dynamic shared memory


@dataclass(frozen=True)
class Multiprocessor:
    """threads, blocks, registers (32 bits each) and shared_bytes that are there at a time, for all blocks together."""

    threads: int
    blocks: int
    registers: int
    shared_bytes: int


LIMITS = {
    "sm_80": Multiprocessor(2048, 32, 65536, 164 * 1024),
    "sm_90a": Multiprocessor(2048, 32, 65536, 228 * 1024),
    "sm_100a": Multiprocessor(2048, 32, 65536, 228 * 1024),
}
# How the hardware hands these out: registers in portions of 256 to a warp, warps by fours, shared memory in portions
# of 128 bytes with 1 KiB a block for itself.
REGISTER_PORTION, WARP_PORTION, SHARED_PORTION, SHARED_RESERVED = 256, 4, 128, 1024
