"""fuse_reduction_epilogue applies ReLU and clipping to the init and at every step, as its docstring warns.

Should: nothing; whoever wants the numbers of the unfused program must not fuse these two.
Kind: documented behaviour
Upstream: https://github.com/apache/tvm/pull/18515
"""

import numpy as np
import tvm
from tvm import s_tir, te, tirx

a, k = te.placeholder((1, 3), "int32"), te.reduce_axis((0, 3))
sums = te.compute((1,), lambda i: te.sum(a[i, k], axis=k), "sums")
out = te.compute((1,), lambda i: tirx.max(sums[i], 0), "out")
sch = s_tir.Schedule(te.create_prim_func([a, out]))
sch.fuse_reduction_epilogue("sums", "out")
tensors = [tvm.runtime.tensor(np.array(x, "int32")) for x in ([[-5, 3, -1]], [0])]
tvm.compile(sch.mod, target="llvm")["main"](*tensors)
got = tensors[1].numpy()[0]
print(f"TVM gives {got} for steps -5, 3, -1; should be 0 if ReLU came last")
raise SystemExit(bool(got == 0))
