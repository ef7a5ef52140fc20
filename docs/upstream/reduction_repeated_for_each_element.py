"""dlight's CPU rule for reductions computes the sum of a norm with one row again for each of its elements.

Should: the sum once per row.
Kind: slow code
Upstream: none found
Avoided in: chapters/kit/schedules/reduction_once.py
"""

import tvm
from tvm import relax
from tvm.s_tir import dlight

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((1, 24), "float32"))
weight = relax.Var("weight", relax.TensorType((24,), "float32"))
with builder.function("main", [x, weight]):
    builder.emit_func_output(builder.emit(relax.op.nn.rms_norm(x, weight, axes=[-1])))
func = relax.transform.LegalizeOps()(builder.get())["rms_norm"]
sch = dlight.cpu.Reduction().apply(func, tvm.target.Target("llvm"), False)
loops = [sch.get(loop) for loop in sch.get_loops("T_multiply_red")]
got = [int(loop.extent) for loop in loops]
print(f"TVM gives the sum of one row of 24 in loops of {got}; should be about 24 iterations")
raise SystemExit(got[0] == 1)
