"""What the lessons, the solutions and the checks share, one idea per file.

Importing it lets compiled kernels use every core. TVM's own default on x86 is half of the processors, because it takes
each second one for a hyper-thread. If the environment variable TVM_NUM_THREADS is set, that many threads are used.
"""

import os

if "TVM_NUM_THREADS" not in os.environ:
    from chapters.kit.machine import physical_cores

    os.environ["TVM_NUM_THREADS"] = str(physical_cores())
