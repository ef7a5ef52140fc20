"""dlight's `gpu.Fallback` raises ScheduleError for a kernel that updates its argument element by element.

Should: take it, as it takes the same kernel with two arguments; or decline.
Kind: an error
Upstream: none found
Avoided in: chapters/kit/schedules/apply_gpu_fallback.py
"""

import tvm
from tvm.s_tir import dlight
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def twice(x: T.Buffer((64,), "float32")):
    for i in range(64):
        with T.sblock("twice"):
            v = T.axis.spatial(64, i)
            x[v] = x[v] * T.float32(2)


target = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024})
try:
    print(dlight.gpu.Fallback().apply(twice, target, False).mod)
except tvm.s_tir.ScheduleError:
    print("TVM gives a ScheduleError; should bind the loop to threads")
    raise SystemExit(0) from None
raise SystemExit(1)
