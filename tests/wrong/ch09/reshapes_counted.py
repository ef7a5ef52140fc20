"""9.9: reshapes count as launches."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.9"
WHAT = "reshapes are counted as launches"
WHY = (
    "Two a layer: after the projection and before the output's. RewriteDataflowReshape makes views of "
    "them, in both pipelines."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Measure it”"


def launches_a_step(num_layers):
    return {"default": 22 * num_layers + 3, "ours": 14 * num_layers + 2}
