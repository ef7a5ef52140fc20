"""A buffer whose life is one iteration of a vectorized loop gets one element for all lanes.

Should: one element per lane, or no vectorized loop.
Kind: wrong numbers
Upstream: none found
"""

import numpy as np
import tvm
from tvm import s_tir, te

a = te.placeholder((4,), "int32")
doubled = te.compute((4,), lambda i: a[i] * 2, "doubled")
first = te.compute((4,), lambda i: doubled[i] + 1, "first")
sch = s_tir.Schedule(
    te.create_prim_func([a, first, te.compute((4,), lambda i: doubled[i], "other")])
)
for block in ("first", "other"):
    sch.reverse_compute_at(block, sch.get_loops("doubled")[0])
sch.vectorize(sch.get_loops("doubled")[0])
tensors = [tvm.runtime.tensor(np.arange(4, dtype="int32")) for _ in range(3)]
tvm.compile(sch.mod, target="llvm")["main"](*tensors)
got = tensors[1].numpy().tolist()
print(f"TVM gives {got}; should be [1, 3, 5, 7]")
raise SystemExit(got == [1, 3, 5, 7])
