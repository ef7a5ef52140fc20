"""On a CPU, `x != y` is false for NaN: LLVM gets an ordered comparison, and the simplifier makes `x != x` False.

Should: True, as in C, in NumPy, and in the code that TVM writes for CUDA.
Kind: wrong numbers
Upstream: none found
Avoided in: chapters/kit/passes/compare_nan.py
"""

import numpy as np
import tvm
from tvm import te, tirx

x = te.placeholder((1,), "float32", "x")
out = te.compute(
    (1,), lambda i: tirx.Select(tirx.NE(x[i], x[i]), tirx.const(1, "int8"), tirx.const(0, "int8"))
)
arrays = [tvm.runtime.tensor(np.array([n], d)) for n, d in ((np.nan, "float32"), (0, "int8"))]
tvm.compile(te.create_prim_func([x, out]), target="llvm")["main"](*arrays)
got = bool(arrays[1].numpy()[0])
print(f"TVM gives {got} for NaN != NaN; should be True")
raise SystemExit(got)
