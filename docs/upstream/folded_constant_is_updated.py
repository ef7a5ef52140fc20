"""FoldConstant makes a tensor that a kernel updates in place one constant for all runs.

Should: 1 in every run, because the program makes the zeros anew.
Kind: wrong numbers
Upstream: none found
Avoided in: chapters/kit/passes/fold_read_only_constants.py
"""

import numpy as np
import tvm
from tvm import relax

mod = tvm.script.from_source("""@I.ir_module
class Module:
    @T.prim_func(private=True)
    def count(x: T.Buffer((T.int64(1),), "float32")): x[0] = x[0] + T.float32(1)
    @R.function
    def main():
        zeros = R.add(R.const([0.0], "float32"), R.const([0.0], "float32"))
        return R.call_tir_inplace(Module.count, (zeros,), [0], out_ty=R.Tensor((1,), "float32"))
""")
mod = tvm.transform.Sequential([relax.transform.LegalizeOps(), relax.transform.FoldConstant()])(mod)
main = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())["main"]
got = [float(np.array(main().numpy())[0]) for _ in range(3)]
print(f"TVM gives {got} in three runs; should be [1.0, 1.0, 1.0]")
raise SystemExit(got == [1, 1, 1])
