"""0.1: n is a number."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.1"
WHAT = "the number of rows is fixed when the module is built"
WHY = (
    "A module with a number in its type serves that one size, and the VM refuses every other. "
    "A symbolic variable stands for whatever size comes at run time."
)
READ = "chapters/ch00_first_module/lesson.md, “Three ways to write it”"


def from_block_builder():
    x = relax.Var("x", relax.TensorType((5, 16), "float32"))
    w = relax.Var("w", relax.TensorType((8, 16), "float32"))
    b = relax.Var("b", relax.TensorType((8,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, b]):
        with builder.dataflow():
            wt = builder.emit(relax.op.permute_dims(w))
            biased = builder.emit(relax.op.add(relax.op.matmul(x, wt), b))
            out = builder.emit_output(relax.op.nn.relu(biased))
        builder.emit_func_output(out)
    return builder.get()
