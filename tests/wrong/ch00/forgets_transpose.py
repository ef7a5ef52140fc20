"""0.1: w is used as it is stored."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.1"
WHAT = "the weight is multiplied as it is stored, without permute_dims"
WHY = (
    "w is stored as (out_features, in_features), so x @ w has no matching inner dimension. "
    "BlockBuilder derives the type of each call as it is emitted, and refuses there."
)
READ = "chapters/ch00_first_module/lesson.md, “Three ways to write it”"


def from_block_builder():
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 16), "float32"))
    w = relax.Var("w", relax.TensorType((8, 16), "float32"))
    b = relax.Var("b", relax.TensorType((8,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, b]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.relu(relax.op.add(relax.op.matmul(x, w), b)))
        builder.emit_func_output(out)
    return builder.get()
