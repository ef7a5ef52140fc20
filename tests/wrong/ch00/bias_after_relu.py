"""0.1: relu comes before the bias."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.1"
WHAT = "relu is applied before the bias is added"
WHY = (
    "relu(x @ w.T) + b and relu(x @ w.T + b) differ wherever the sum is negative and the bias "
    "is not zero. A test whose bias is all zeros would not notice."
)
READ = "chapters/ch00_first_module/lesson.md, “Three ways to write it”"


def from_block_builder():
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 16), "float32"))
    w = relax.Var("w", relax.TensorType((8, 16), "float32"))
    b = relax.Var("b", relax.TensorType((8,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, b]):
        with builder.dataflow():
            xw = builder.emit(relax.op.matmul(x, relax.op.permute_dims(w)))
            out = builder.emit_output(relax.op.add(relax.op.nn.relu(xw), b))
        builder.emit_func_output(out)
    return builder.get()
