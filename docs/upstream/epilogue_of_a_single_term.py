"""dlight's `gpu.Fallback` moves the block behind a sum of a single term into the sum, and into its init.

Should: 0.5 for a 4, the inverse of its root. (The rule normalizes, then inlines. This is how RMSNorm becomes NaN.)
Kind: wrong numbers
Upstream: none found
Avoided in: chapters/kit/schedules/apply_gpu_fallback.py
"""

import numpy as np
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir.dlight.base import try_inline

x, k = te.placeholder((3, 1), name="x"), te.reduce_axis((0, 1))
total = te.compute((3,), lambda i: te.sum(x[i, k], axis=k), "total")
out = te.compute((3,), lambda i: tirx.rsqrt(total[i] + tirx.const(0.01, "float32")), "out")
sch = Schedule(te.create_prim_func([x, out]))
try_inline(sch, normalize_prim_func(sch))
arrays = [tvm.runtime.tensor(np.full(s, 4, "float32")) for s in ((3, 1), (3,))]
tvm.compile(sch.mod, target="llvm")["main"](*arrays)
got = arrays[1].numpy()
print(f"TVM gives {got}; should be about 0.5 three times")
raise SystemExit(bool(np.allclose(got, 0.5, atol=1e-2)))
