"""FuseTransposeMatmul stops on x @ x.T.

Should: fuse the two, or leave them.
Kind: an error
Upstream: none found
Avoided in: solutions/ch03_transpose_matmul/fuse_transpose_matmul.py
"""

from tvm import relax

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType((4, 6), "float32"))
with builder.function("main", [x]):
    with builder.dataflow():
        transposed = builder.emit(relax.op.permute_dims(x))
        out = builder.emit_output(relax.op.matmul(x, transposed))
    builder.emit_func_output(out)
try:
    relax.transform.FuseTransposeMatmul()(builder.get())
    got = "a module"
except IndexError as error:
    got = f"IndexError: {str(error).splitlines()[0]}"
print(f"TVM gives {got}; should be a module")
raise SystemExit(got == "a module")
