"""1.7: the two transposes are not in a row."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.7"
WHAT = "the careless pass finds no pair in your module and leaves it as it is"
WHY = (
    "It looks for a permute_dims whose argument is a permute_dims. An operator between the two "
    "hides them, even from a careless pattern."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “Break it”"


def counterexample():
    x = relax.Var("x", relax.TensorType((3, 3, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(x, [1, 2, 0]))
            changed = builder.emit(relax.op.negative(turned))
            out = builder.emit_output(relax.op.permute_dims(changed, [1, 2, 0]))
        builder.emit_func_output(out)
    return builder.get(), [np.arange(27, dtype="float32").reshape(3, 3, 3)]
