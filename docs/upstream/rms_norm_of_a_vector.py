"""rms_norm cannot be lowered for a tensor of one dimension, or over another axis than the last.

Should: a kernel, because Relax accepts the operator with these axes.
Kind: an error
Upstream: https://github.com/apache/tvm/issues/18002
"""

import tvm
from tvm import relax

got = {}
for shape, axis in (((4,), 0), ((4, 4), 0)):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    weight = relax.Var("weight", relax.TensorType((4,), "float32"))
    with builder.function("main", [x, weight]):
        builder.emit_func_output(builder.emit(relax.op.nn.rms_norm(x, weight, axes=[axis])))
    try:
        relax.transform.LegalizeOps()(builder.get())
        got[shape] = "a kernel"
    except tvm.error.InternalError as error:
        got[shape] = str(error).strip().splitlines()[-1]
print(f"TVM gives {got}; should be kernels")
raise SystemExit(set(got.values()) == {"a kernel"})
