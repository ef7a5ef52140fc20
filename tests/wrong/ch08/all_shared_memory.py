"""States the shared memory a block may have when it asks for it."""

from solutions.ch08_gpu_targets.gpu_schedules import *

EXERCISE = "8.1"
WHAT = "227 KiB of shared memory where 48 are static"
WHY = (
    "227 KiB are there for kernels that ask when they are launched. A schedule that believes this number "
    "makes static arrays that the compiler refuses."
)
READ = "chapters/ch08_gpu_targets/lesson.md, “A target is a promise”"


def h200_target() -> Target:
    if H200 not in tvm.target.list_tags():
        tvm.target.register_tag(
            H200,
            {
                "kind": "cuda",
                "arch": "sm_90a",
                "max_num_threads": 1024,
                "max_threads_per_block": 1024,
                "thread_warp_size": WARP,
                "max_shared_memory_per_block": 227 * 1024,
                "registers_per_block": 65536,
                "l2_cache_size_bytes": 50 * 1024 * 1024,
            },
        )
    return Target({"tag": H200})
