"""1.7: a pair that does cancel."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.7"
WHAT = "your two transposes cancel, so dropping them is right"
WHY = (
    "Compose them: a dimension moved to position i by the first and back by the second is "
    "where it was. Rotations of three dimensions do not undo themselves."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “Break it”"


def counterexample():
    x = relax.Var("x", relax.TensorType((3, 3, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(x, None))
            out = builder.emit_output(relax.op.permute_dims(turned, None))
        builder.emit_func_output(out)
    return builder.get(), [np.arange(27, dtype="float32").reshape(3, 3, 3)]
