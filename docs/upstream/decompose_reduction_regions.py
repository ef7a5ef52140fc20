"""decompose_reduction declares no reads for the init of a fused block, and the bias for its update, which reads none.

Plain loops compute the right numbers. tensorize compares the declared regions, and refuses both blocks.
Should: T.reads(C[i]) for the init, and no C for the update.
Kind: invalid IR
Upstream: none found
"""

from tvm import s_tir, te

a, k = te.placeholder((2, 3), "int32", "A"), te.reduce_axis((0, 3), "k")
c = te.placeholder((2,), "int32", "C")
sums = te.compute((2,), lambda i: te.sum(a[i, k], axis=k), "sums")
out = te.compute((2,), lambda i: sums[i] + c[i], "out")
sch = s_tir.Schedule(te.create_prim_func([a, c, out]))
sch.fuse_reduction_epilogue("sums", "out")
sch.decompose_reduction("sums", sch.get_loops("sums")[1])
blocks = [sch.get(sch.get_sblock(name)) for name in ("sums_init", "sums_update")]
init, update = ([region.source.name for region in block.reads] for block in blocks)
print(f"TVM gives reads {init} for the init and {update} for the update; should be ['C'], no C")
raise SystemExit("C" in init and "C" not in update)
