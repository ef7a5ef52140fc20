"""fuse_reduction_epilogue takes epilogues that are no bias, and runs a part of them at every step.

Should: refuse them, or compute what the two blocks computed.
Kind: wrong numbers
Upstream: none found
Avoided in: solutions/ch07_when_fusion_is_sound/soundness.py
"""

import numpy as np
import tvm
from tvm import s_tir, te

a, c, k = te.placeholder((2, 3), "int32"), te.placeholder((2,), "int32"), te.reduce_axis((0, 3))
sums = te.compute((2,), lambda i: te.sum(a[i, k], axis=k), "sums")
got, want = [], []
for f in (lambda s, c: s - c, lambda s, c: c - s, lambda s, c: s // 3, lambda s, c: s + c + 1):
    out = te.compute((2,), lambda i: f(sums[i], c[i]), "out")  # noqa: B023
    sch = s_tir.Schedule(te.create_prim_func([a, c, out]))
    sch.fuse_reduction_epilogue("sums", "out")
    arrays = np.full((2, 3), 7, "int32"), np.full(2, 5, "int32"), np.zeros(2, "int32")
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(sch.mod, target="llvm")["main"](*tensors)
    got.append(int(tensors[-1].numpy()[0]))
    want.append(f(3 * 7, 5))
print(f"TVM gives {got} for s - c, c - s, s // 3, s + c + 1; should be {want}")
raise SystemExit(got == want)
