"""fuse_reduction_epilogue declares no read of the reduction from a buffer that the epilogue reads, too.

The numbers are right. Passes that trust T.reads may move or cache too little.
Should: T.reads that cover A[i, 0] and A[i, k].
Kind: invalid IR
Upstream: none found
Avoided in: solutions/ch07_when_fusion_is_sound/soundness.py
"""

from tvm import s_tir, te

a, k = te.placeholder((2, 3), "int32", "A"), te.reduce_axis((0, 3), "k")
sums = te.compute((2,), lambda i: te.sum(a[i, k], axis=k), "sums")
out = te.compute((2,), lambda i: sums[i] + a[i, 0], "out")
sch = s_tir.Schedule(te.create_prim_func([a, out]))
sch.fuse_reduction_epilogue("sums", "out")
got = [str(region) for region in sch.get(sch.get_sblock("sums")).reads]
print(f"TVM gives T.reads({', '.join(got)}); should be a region with A[i, 0] and A[i, k]")
raise SystemExit(got != ["A[v_i, 0]"])
