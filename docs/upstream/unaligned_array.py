"""The virtual machine takes a NumPy array at any address, and vector instructions may then end the process.

tvm.runtime.from_dlpack refuses the same array. Whether this call ends the process depends on the processor.
Should: the same refusal.
Kind: a crash
Upstream: https://github.com/apache/tvm/pull/14771
Avoided in: chapters/kit/cpu/aligned.py
"""

import numpy as np
import tvm
from tvm import relax

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((4,), "float32"))
with builder.function("main", [x]):
    builder.emit_func_output(builder.emit(relax.op.add(x, x)))
main = relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())["main"]
room = np.zeros(128, "uint8")
start = -room.ctypes.data % 64 + 4
print("TVM gives a call that runs, or a segmentation fault; should be a RuntimeError", flush=True)
try:
    main(room[start : start + 16].view("float32"))
except RuntimeError:
    raise SystemExit(1) from None
