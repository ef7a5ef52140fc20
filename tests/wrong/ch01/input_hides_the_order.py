"""1.7: all elements equal."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.7"
WHAT = "your input looks the same in every order of dimensions"
WHY = (
    "With equal elements a wrong order cannot be seen. This is how careless tests pass: give "
    "every element a value of its own."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “Break it”"


def counterexample():
    x = relax.Var("x", relax.TensorType((3, 3, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(x, [1, 2, 0]))
            out = builder.emit_output(relax.op.permute_dims(turned, [1, 2, 0]))
        builder.emit_func_output(out)
    return builder.get(), [np.ones((3, 3, 3), "float32")]
