"""Takes the architecture without its suffix."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.1"
WHAT = "sm_90 in place of sm_90a"
WHY = (
    "The suffix admits the instructions of this architecture alone, wgmma among them. Code for sm_90 runs "
    "on an H200 and reaches about two thirds of it."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “A target is a promise”"


def h200_target() -> Target:
    if H200 not in tvm.target.list_tags():
        tvm.target.register_tag(
            H200,
            {
                "kind": "cuda",
                "arch": "sm_90",
                "max_num_threads": 1024,
                "max_threads_per_block": 1024,
                "thread_warp_size": WARP,
                "max_shared_memory_per_block": STATIC_SHARED_BYTES,
                "registers_per_block": 65536,
                "l2_cache_size_bytes": 50 * 1024 * 1024,
            },
        )
    return Target({"tag": H200})
