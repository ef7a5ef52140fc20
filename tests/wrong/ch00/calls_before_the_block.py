"""0.1: a dataflow block that holds only the result."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.1"
WHAT = "the calls are emitted before the dataflow block begins, and only their result is in it"
WHY = (
    "What is emitted lands in the block that is open at that moment. A pass that looks into dataflow "
    "blocks finds one without a single call."
)
READ = "chapters/ch00_first_module/lesson.md, “What is in it”"


def from_block_builder():
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 16), "float32"))
    w = relax.Var("w", relax.TensorType((8, 16), "float32"))
    b = relax.Var("b", relax.TensorType((8,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, b]):
        product = builder.emit(relax.op.matmul(x, relax.op.permute_dims(w)))
        result = builder.emit(relax.op.nn.relu(relax.op.add(product, b)))
        with builder.dataflow():
            out = builder.emit_output(result)
        builder.emit_func_output(out)
    return builder.get()
