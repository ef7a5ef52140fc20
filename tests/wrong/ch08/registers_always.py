"""Registers the tag whether or not it is there."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.1"
WHAT = "a tag that is registered over an existing one"
WHY = (
    "Tags are global to the process. Whoever registered this one before has other numbers, and a reason "
    "for them."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “A target is a promise”"


def h200_target() -> Target:
    if True:
        tvm.target.register_tag(
            H200,
            {
                "kind": "cuda",
                "arch": "sm_90a",
                "max_num_threads": 1024,
                "max_threads_per_block": 1024,
                "thread_warp_size": WARP,
                "max_shared_memory_per_block": STATIC_SHARED_BYTES,
                "registers_per_block": 65536,
                "l2_cache_size_bytes": 50 * 1024 * 1024,
            },
            override=True,
        )
    return Target({"tag": H200})
