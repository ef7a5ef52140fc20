"""fuse_reduction_epilogue removes the sums although another block reads them.

Should: refuse, or keep the sums for their other reader.
Kind: wrong numbers
Upstream: none found
Avoided in: solutions/ch07_when_fusion_is_sound/soundness.py
"""

from tvm import s_tir, te

a, c, k = te.placeholder((2, 3), "int32"), te.placeholder((2,), "int32"), te.reduce_axis((0, 3))
sums = te.compute((2,), lambda i: te.sum(a[i, k], axis=k), "sums")
out = te.compute((2,), lambda i: sums[i] + c[i], "out")
other = te.compute((2,), lambda i: sums[i] * 2, "other")
sch = s_tir.Schedule(te.create_prim_func([a, c, out, other]))
sch.fuse_reduction_epilogue("sums", "out")
written = [region.source.name for region in sch.get(sch.get_sblock("sums")).writes]
print(f"TVM gives a block that writes {written}; should write `sums` too, which `other` reads")
raise SystemExit("sums" in written)
