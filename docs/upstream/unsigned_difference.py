"""An unsigned difference that wraps is compiled to 0: LLVM is told that it cannot wrap.

Should: 4294967291, as in C and NumPy. (In the report, a contributor calls overflow undefined.)
Kind: wrong numbers
Upstream: https://github.com/apache/tvm/issues/12383
"""

import numpy as np
import tvm
from tvm import te, tirx

a = te.placeholder((4,), "uint32")
out = te.compute((4,), lambda i: tirx.Sub(tirx.const(0, "uint32"), a[i]))
arrays = [tvm.runtime.tensor(np.full(4, 5, "uint32")) for _ in range(2)]
tvm.compile(te.create_prim_func([a, out]), target="llvm")["main"](*arrays)
got = int(arrays[1].numpy()[0])
print(f"TVM gives {got} for 0 - 5; should be {2**32 - 5}")
raise SystemExit(got == 2**32 - 5)
