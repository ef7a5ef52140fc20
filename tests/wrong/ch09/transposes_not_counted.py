"""9.9: TVM's transposes are forgotten."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.9"
WHAT = "the transposes of TVM's default pipeline are forgotten"
WHY = (
    "Each of the four weights of a layer, and the head's, is transposed by a kernel of its own, at "
    "every step."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Measure it”"


def launches_a_step(num_layers):
    return {"default": 16 * num_layers + 2, "ours": 12 * num_layers + 2}
