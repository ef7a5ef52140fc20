"""3.6: the sizes differ, so that the careless pass fails loudly."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.6"
WHAT = (
    "the dimensions that change places have different sizes, so the careless pass fails in the open"
)
WHY = (
    "With different sizes the kernel's result has another shape, or an index runs out of its buffer. A "
    "silent error needs equal sizes where careless is mistaken."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Break it”"


def deceives_careless():
    x = relax.Var("x", relax.TensorType((4, 2), "float32"))
    w = relax.Var("w", relax.TensorType((2, 5, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(w, [2, 0, 1]))
            out = builder.emit_output(relax.op.matmul(x, turned))
        builder.emit_func_output(out)
    random = np.random.default_rng(0)
    return builder.get(), [random.standard_normal(s).astype("float32") for s in ((4, 2), (2, 5, 3))]
