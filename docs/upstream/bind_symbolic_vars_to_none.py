"""Function.bind_symbolic_vars ends the process if a size is None.

Should: a TypeError.
Kind: a crash
Upstream: none found
"""

from tvm import relax, tirx

n = tirx.Var("n", "int64")
x = relax.Var("x", relax.TensorType((n, 4), "float32"))
builder = relax.BlockBuilder()
with builder.function("main", [x]):
    builder.emit_func_output(x)
print("TVM gives a segmentation fault, if no line follows; should be a TypeError", flush=True)
try:
    builder.get()["main"].bind_symbolic_vars({n: None})
    print("a function")
except TypeError as error:
    print(error)
raise SystemExit(1)
