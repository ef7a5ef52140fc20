"""A division by the constant 0.0 stops the compilation: TVM's constant folder takes it for one of integers.

Should: inf for 1 and -inf for -1, as in IEEE 754, C and NumPy; with a tensor that holds 0.0, TVM gives that.
Kind: an error
Upstream: https://github.com/apache/tvm/issues/17745
"""

import numpy as np
import tvm
from tvm import relax

x = relax.Var("x", relax.TensorType((2,), "float32"))
builder = relax.BlockBuilder()
with builder.function("main", [x]):
    builder.emit_func_output(builder.emit(relax.op.divide(x, relax.const(0.0, "float32"))))
try:
    main = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())["main"]
    got = main(tvm.runtime.tensor(np.array([1, -1], "float32"))).numpy().tolist()
except Exception as error:
    got = str(error).strip().splitlines()[-1]
print(f"TVM gives {got}; should be [inf, -inf]")
raise SystemExit(got == [float("inf"), float("-inf")])
