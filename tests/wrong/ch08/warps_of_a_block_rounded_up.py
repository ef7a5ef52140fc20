"""Rounds the warps of each block up to the portion."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.8"
WHAT = "registers for warps that a block does not have"
WHY = (
    "It is the warps of the whole multiprocessor that come by fours: as many as their registers allow, rounded down. "
    "A block of two warps takes the registers of two, not of four."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “What the compiler reports”"


def occupancy(used: Resources, threads: int, arch: str) -> float:
    limit = LIMITS[arch]
    warps = math.ceil(threads / WARP)
    registers = math.ceil(used.registers * WARP / REGISTER_PORTION) * REGISTER_PORTION
    shared = math.ceil((used.shared_bytes + SHARED_RESERVED) / SHARED_PORTION) * SHARED_PORTION
    warps_with_registers = math.ceil(warps / WARP_PORTION) * WARP_PORTION
    blocks = min(
        limit.blocks,
        limit.threads // WARP // warps,
        limit.registers // max(registers * warps_with_registers, 1),
        limit.shared_bytes // shared,
    )
    return blocks * warps * WARP / limit.threads
