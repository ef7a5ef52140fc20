"""0.1: the calls stand outside any dataflow block."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.1"
WHAT = "the calls are emitted outside a dataflow block"
WHY = (
    "The numbers are right, but FuseOpsByPattern and other graph passes look only inside "
    "dataflow blocks, so none of the later chapters could touch this module."
)
READ = "chapters/ch00_first_module/lesson.md, “What is in it”"


def from_block_builder():
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 16), "float32"))
    w = relax.Var("w", relax.TensorType((8, 16), "float32"))
    b = relax.Var("b", relax.TensorType((8,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, b]):
        wt = builder.emit(relax.op.permute_dims(w))
        biased = builder.emit(relax.op.add(relax.op.matmul(x, wt), b))
        builder.emit_func_output(builder.emit(relax.op.nn.relu(biased)))
    return builder.get()
