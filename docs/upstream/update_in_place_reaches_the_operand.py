"""The default pipeline makes a transpose that moves nothing its operand, so an update in place reaches both.

Should: x + 2 * x, because a tensor of Relax is a value.
Kind: wrong numbers
Upstream: none found
Avoided in: chapters/kit/passes/copy_operands_before_in_place.py
"""

import numpy as np
import tvm
from tvm import relax

mod = tvm.script.from_source("""@I.ir_module
class Module:
    @T.prim_func(private=True)
    def double(x: T.Buffer((T.int64(1),), "float32")): x[0] = x[0] * T.float32(2)
    @R.function
    def main(x: R.Tensor((1,), "float32")):
        with R.dataflow():
            y = R.permute_dims(x, axes=[0]); z = R.call_tir_inplace(Module.double, (y,), [0], R.Tensor((1,), "float32"))
            out = R.add(x, z); R.output(out)
        return out""")
main = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline="default"), tvm.cpu())["main"]
got = main(tvm.runtime.tensor(np.ones((1,), "float32"))).numpy().item()
print(f"TVM gives {got} for x = 1; should be 3.0")
raise SystemExit(got == 3)
