"""FuseOps stops with an internal error on a branch whose dataflow block outputs a variable that nothing reads.

Should: a module.
Kind: an error
Upstream: none found
"""

import tvm
from tvm import relax

mod = tvm.script.from_source("""@I.ir_module
class Module:
    @R.function
    def main(choose: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")):
        if choose:
            with R.dataflow(): unused = R.tanh(x); out = R.negative(x); R.output(unused, out)
        else: out = R.add(x, x)
        return out""")
names, got = ("LegalizeOps", "AnnotateTIROpPattern", "FuseOps"), "a module"
try:
    tvm.transform.Sequential([getattr(relax.transform, name)() for name in names])(mod)
except tvm.error.InternalError as error:
    got = f"InternalError: {str(error).strip().splitlines()[-1]}"
print(f"TVM gives {got}; should be a module")
raise SystemExit(got == "a module")
