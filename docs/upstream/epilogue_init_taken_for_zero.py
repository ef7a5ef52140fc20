"""fuse_reduction_epilogue takes every reduction for a sum from 0: here a sum from 5, and a maximum.

Should: apply the epilogue to the reduction's own init and step, or refuse.
Kind: wrong numbers
Upstream: none found
Avoided in: solutions/ch07_when_fusion_is_sound/soundness.py
"""

import numpy as np
import tvm
from tvm import s_tir, te

a, c, k = te.placeholder((2, 3), "int32"), te.placeholder((2,), "int32"), te.reduce_axis((0, 3))
from_5 = te.comm_reducer(lambda x, y: x + y, lambda dtype: tvm.tirx.const(5, dtype))
got, want = [], [5 + 3 * 7 + 1, 7 + 1]
for reduction in (from_5(a[0, k], axis=k), te.max(a[0, k], axis=k)):
    sums = te.compute((2,), lambda _: reduction, "sums")  # noqa: B023
    out = te.compute((2,), lambda i: sums[i] + c[i], "out")  # noqa: B023
    sch = s_tir.Schedule(te.create_prim_func([a, c, out]))
    sch.fuse_reduction_epilogue("sums", "out")
    arrays = np.full((2, 3), 7, "int32"), np.ones(2, "int32"), np.zeros(2, "int32")
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(sch.mod, target="llvm")["main"](*tensors)
    got.append(int(tensors[-1].numpy()[0]))
print(f"TVM gives {got} for a sum from 5 and a maximum; should be {want}")
raise SystemExit(got == want)
