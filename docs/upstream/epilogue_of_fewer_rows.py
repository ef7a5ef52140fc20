"""fuse_reduction_epilogue takes an epilogue of four of six sums; the fused loops then write beyond the result.

Should: refuse, or cut the reduction to the four rows.
Kind: wrong numbers
Upstream: none found
Avoided in: solutions/ch07_when_fusion_is_sound/soundness.py
"""

from tvm import s_tir, te

a, c, k = te.placeholder((6, 3), "int32"), te.placeholder((4,), "int32"), te.reduce_axis((0, 3))
sums = te.compute((6,), lambda i: te.sum(a[i, k], axis=k), "sums")
out = te.compute((4,), lambda i: sums[i] + c[i], "out")
sch = s_tir.Schedule(te.create_prim_func([a, c, out]))
sch.fuse_reduction_epilogue("sums", "out")
block = sch.get(sch.get_sblock("sums"))  # running it would corrupt memory
rows, room = int(block.iter_vars[0].dom.extent), int(block.writes[0].source.shape[0])
print(
    f"TVM gives a block that writes {rows} elements of a result of {room}; should be at most {room}"
)
raise SystemExit(rows <= room)
