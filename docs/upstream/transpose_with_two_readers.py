"""FuseTransposeMatmul stops on two matmuls that share one transposed weight.

Should: fuse both, or leave them.
Kind: an error
Upstream: none found
Avoided in: solutions/ch03_transpose_matmul/fuse_transpose_matmul.py
"""

from tvm import relax

builder = relax.BlockBuilder()
x, y = (relax.Var(name, relax.TensorType((4, 6), "float32")) for name in "xy")
w = relax.Var("w", relax.TensorType((7, 6), "float32"))
with builder.function("main", [x, y, w]):
    with builder.dataflow():
        wt = builder.emit(relax.op.permute_dims(w))
        q, k = (builder.emit(relax.op.matmul(operand, wt)) for operand in (x, y))
        out = builder.emit_output(relax.op.add(q, k))
    builder.emit_func_output(out)
try:
    relax.transform.FuseTransposeMatmul()(builder.get())
    got = "a module"
except AttributeError as error:
    got = f"AttributeError: {error}"
print(f"TVM gives {got}; should be a module")
raise SystemExit(got == "a module")
