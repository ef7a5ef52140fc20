"""StaticPlanBlockMemory gives a tensor behind an `if` a storage that only one branch allocates.

The other branch then reads memory that was never allocated, which may end the process.
Should: a storage that is allocated on every path to its use.
Kind: invalid IR
Upstream: https://github.com/apache/tvm/issues/20191
Avoided in: chapters/kit/passes/plan_straight_functions.py
"""

import tvm
from tvm import relax

mod = tvm.script.from_source("""@I.ir_module
class Module:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((64, 8), "float32")) -> R.Tensor((64, 8), "float32"):
        if c: y = R.exp(R.nn.softmax(R.nn.softmax(x, axis=0)))
        else: y = R.nn.softmax(x)
        return R.nn.softmax(R.nn.softmax(R.nn.softmax(y, axis=0)), axis=0)
""")
names = "LegalizeOps", "RemovePurityChecking", "CallTIRRewrite", "StaticPlanBlockMemory"
planned = tvm.transform.Sequential([getattr(relax.transform, name)() for name in names])(mod)
got = [relax.analysis.check_well_formed(one) for one in (mod, planned)]
print(f"TVM gives {got} for well-formed before and after; should be [True, True]")
raise SystemExit(all(got))
