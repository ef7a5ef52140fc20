"""Divides the registers exactly."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.8"
WHAT = "registers handed out one by one"
WHY = (
    "A warp gets registers in portions of 256, and warps come by fours. 33 registers a thread cost as "
    "much as 40."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “What the compiler reports”"


def occupancy(used: Resources, threads: int, arch: str) -> float:
    limit = LIMITS[arch]
    warps = math.ceil(threads / WARP)
    registers = used.registers * WARP
    shared = math.ceil((used.shared_bytes + SHARED_RESERVED) / SHARED_PORTION) * SHARED_PORTION
    warps_by_registers = limit.registers // max(registers, 1)
    blocks = min(
        limit.blocks,
        limit.threads // WARP // warps,
        warps_by_registers // warps,
        limit.shared_bytes // shared,
    )
    return blocks * warps * WARP / limit.threads
