"""The stock intrinsic dot_16x4_vnni does not compile with the LLVM of this release.

Should: a kernel with vpdpbusd.
Kind: an error
Upstream: https://github.com/llvm/llvm-project/pull/155194
Avoided in: chapters/kit/cpu/vnni.py
"""

import tvm
from tvm import s_tir, te
from tvm.s_tir.tensor_intrin.x86 import VNNI_DOT_16x4_INTRIN

x, w, k = te.placeholder((4,), "uint8"), te.placeholder((16, 4), "int8"), te.reduce_axis((0, 4))
out = te.compute((16,), lambda i: te.sum(x[k].astype("int32") * w[i, k].astype("int32"), axis=k))
sch = s_tir.Schedule(te.create_prim_func([x, w, out]))
(i, j), got = sch.get_loops(out.op.name), "a kernel"
steps, j = sch.split(j, [1, None])
sch.reorder(steps, i, j)
sch.decompose_reduction(out.op.name, steps)
sch.tensorize(i, VNNI_DOT_16x4_INTRIN)
try:
    tvm.compile(sch.mod, target=tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake"}))
except tvm.error.InternalError as error:
    got = next(line for line in str(error).splitlines() if "Call parameter" in line)
print(f"TVM gives {got}; should be a kernel")
raise SystemExit(got == "a kernel")
