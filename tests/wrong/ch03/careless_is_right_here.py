"""3.6: a module on which the careless check happens to be right."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.6"
WHAT = (
    "the module's permutation is a real swap of the last two dimensions, on which careless is right"
)
WHY = (
    "careless is wrong only where a dimension moves that it does not look at: w needs three dimensions at "
    "least."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Break it”"


def deceives_careless():
    x = relax.Var("x", relax.TensorType((4, 3), "float32"))
    w = relax.Var("w", relax.TensorType((5, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(w))
            out = builder.emit_output(relax.op.matmul(x, turned))
        builder.emit_func_output(out)
    random = np.random.default_rng(0)
    return builder.get(), [random.standard_normal(s).astype("float32") for s in ((4, 3), (5, 3))]
