"""fuse_reduction_epilogue takes an epilogue with a cast, and stores a float32 expression of an int32 sum wrongly.

Should: refuse.
Kind: invalid IR
Upstream: none found
Avoided in: solutions/ch07_when_fusion_is_sound/soundness.py
"""

from tvm import s_tir, te

a, k = te.placeholder((2, 3), "int32"), te.reduce_axis((0, 3))
sums = te.compute((2,), lambda i: te.sum(a[i, k], axis=k), "sums")
out = te.compute((2,), lambda i: sums[i].astype("float32") + 2.0, "out")
sch = s_tir.Schedule(te.create_prim_func([a, out]))
sch.fuse_reduction_epilogue("sums", "out")
try:
    s_tir.Schedule(sch.mod)
    got = "a module that TVM's verifier accepts"
except Exception as error:
    got = f"a module that TVM's verifier refuses: {str(error).strip().splitlines()[-1]}"
print(f"TVM gives {got}; should be a ScheduleError of fuse_reduction_epilogue")
raise SystemExit("accepts" in got)
