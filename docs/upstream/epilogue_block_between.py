"""fuse_reduction_epilogue moves the epilogue before a block that computes the bias.

Should: refuse.
Kind: wrong numbers
Upstream: none found
Avoided in: solutions/ch07_when_fusion_is_sound/soundness.py
"""

from tvm import s_tir, te

a, c, k = te.placeholder((2, 3), "int32"), te.placeholder((2,), "int32"), te.reduce_axis((0, 3))
sums = te.compute((2,), lambda i: te.sum(a[i, k], axis=k), "sums")
bias = te.compute((2,), lambda i: c[i] * 2, "bias")
out = te.compute((2,), lambda i: sums[i] + bias[i], "out")
sch = s_tir.Schedule(te.create_prim_func([a, c, out]))
sch.fuse_reduction_epilogue("sums", "out")
got = [sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root"))]
print(f"TVM gives blocks in the order {got}, and sums reads the bias; should be ['bias', 'sums']")
raise SystemExit(got != ["sums", "bias"])
