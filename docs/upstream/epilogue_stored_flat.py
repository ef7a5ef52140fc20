"""fuse_reduction_epilogue stops with an internal error if the result is flat and the epilogue has two axes.

Should: a ScheduleError, or a fused block.
Kind: an error
Upstream: none found
Avoided in: solutions/ch07_when_fusion_is_sound/soundness.py
"""

import tvm
from tvm import s_tir, te

a, k = te.placeholder((2, 2, 3), "int32"), te.reduce_axis((0, 3))
sums = te.compute((2, 2), lambda i, j: te.sum(a[i, j, k], axis=k), "sums")
out = te.compute((2, 2), lambda i, j: sums[i, j] + 1, "out")
sch = s_tir.Schedule(te.create_prim_func([a, out]))
sch.transform_layout("out", ("write", 0), lambda i, j: [i * 2 + j])
try:
    sch.fuse_reduction_epilogue("sums", "out")
    got = "a fused block"
except (s_tir.ScheduleError, tvm.error.InternalError) as error:
    got = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
print(f"TVM gives {got}; should be a ScheduleError or a fused block")
raise SystemExit(not got.startswith("InternalError"))
