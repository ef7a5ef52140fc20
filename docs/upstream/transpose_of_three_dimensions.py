"""FuseTransposeMatmul stops on a permute_dims of three dimensions that is written without axes.

Should: leave it, because it moves the batch too.
Kind: an error
Upstream: none found
Avoided in: solutions/ch03_transpose_matmul/fuse_transpose_matmul.py
"""

from tvm import relax

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((2, 4, 6), "float32"))
w = relax.Var("w", relax.TensorType((7, 6, 2), "float32"))
with builder.function("main", [x, w]):
    with builder.dataflow():
        transposed = builder.emit(relax.op.permute_dims(w))
        out = builder.emit_output(relax.op.matmul(x, transposed))
    builder.emit_func_output(out)
try:
    relax.transform.FuseTransposeMatmul()(builder.get())
    got = "a module"
except TypeError as error:
    got = f"TypeError: {str(error).splitlines()[0]}"
print(f"TVM gives {got}; should be a module")
raise SystemExit(got == "a module")
