"""fuse_reduction_epilogue pairs the axes of two blocks by position, also where the epilogue reads them transposed.

Should: pair the axes by the indices of the sums that are read, or refuse.
Kind: wrong numbers
Upstream: none found
Avoided in: solutions/ch07_when_fusion_is_sound/soundness.py
"""

import numpy as np
import tvm
from tvm import s_tir, te

a, c = te.placeholder((2, 2, 3), "int32"), te.placeholder((2, 2), "int32")
k = te.reduce_axis((0, 3))
sums = te.compute((2, 2), lambda i, j: te.sum(a[i, j, k], axis=k), "sums")
out = te.compute((2, 2), lambda i, j: sums[j, i] + c[i, j], "out")
sch = s_tir.Schedule(te.create_prim_func([a, c, out]))
sch.fuse_reduction_epilogue("sums", "out")
given = np.arange(12, dtype="int32").reshape(2, 2, 3), np.zeros((2, 2), "int32")
tensors = [tvm.runtime.tensor(array) for array in (*given, given[1])]
tvm.compile(sch.mod, target="llvm")["main"](*tensors)
got, want = tensors[-1].numpy().tolist(), given[0].sum(2).T.tolist()
print(f"TVM gives {got}; should be {want}")
raise SystemExit(got == want)
