"""Forgets that a multiprocessor holds 32 blocks at most."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.8"
WHAT = "more blocks than a multiprocessor holds"
WHY = "Blocks of one warp leave half of the threads empty, however little each of them takes."
READ = "chapters/ch08_gpu_targets/lesson.md, “What the compiler reports”"


def occupancy(used: Resources, threads: int, arch: str) -> float:
    limit = LIMITS[arch]
    warps = math.ceil(threads / WARP)
    registers = math.ceil(used.registers * WARP / REGISTER_PORTION) * REGISTER_PORTION
    shared = math.ceil((used.shared_bytes + SHARED_RESERVED) / SHARED_PORTION) * SHARED_PORTION
    warps_by_registers = limit.registers // max(registers, 1) // WARP_PORTION * WARP_PORTION
    blocks = min(
        limit.threads // WARP // warps,
        warps_by_registers // warps,
        limit.shared_bytes // shared,
    )
    return blocks * warps * WARP / limit.threads
