"""1.7: the careless pass gives a result of another shape."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.7"
WHAT = "the careless pass changes the shape of your result, not only the order of its elements"
WHY = (
    "The next shape check stops such a module. In a cube, or wherever the axes turned have one size, "
    "nothing does: choose the sizes so that the shape is the same."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “Break it”"


def counterexample():
    x = relax.Var("x", relax.TensorType((2, 3, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(x, [1, 2, 0]))
            out = builder.emit_output(relax.op.permute_dims(turned, [1, 2, 0]))
        builder.emit_func_output(out)
    return builder.get(), [np.arange(24, dtype="float32").reshape(2, 3, 4)]
