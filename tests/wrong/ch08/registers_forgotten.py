"""Looks at threads, blocks and shared memory."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.8"
WHAT = "registers that do not count"
WHY = "Registers are the first thing that runs out: 64 a thread leave room for half of the threads."
READ = "chapters/ch08_gpu_targets/lesson.md, “What the compiler reports”"


def occupancy(used: Resources, threads: int, arch: str) -> float:
    limit = LIMITS[arch]
    warps = math.ceil(threads / WARP)
    shared = math.ceil((used.shared_bytes + SHARED_RESERVED) / SHARED_PORTION) * SHARED_PORTION
    warps_by_registers = limit.threads // WARP
    blocks = min(
        limit.blocks,
        limit.threads // WARP // warps,
        warps_by_registers // warps,
        limit.shared_bytes // shared,
    )
    return blocks * warps * WARP / limit.threads
