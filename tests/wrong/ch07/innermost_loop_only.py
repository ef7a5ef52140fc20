"""7.3: only the innermost reduction loop."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.3"
WHAT = "the predicate asks for the last iteration of the innermost reduction loop only"
WHY = (
    "That loop ends once for each iteration of the others. The last step is done when all of them are "
    "in their last iteration."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “The last step”"


def last_step(nest):
    own = [loop.loop_var for loop in reduction_loops(nest)]
    parts = [EQ(loop.loop_var, loop.min + loop.extent - 1) for loop in reduction_loops(nest)[-1:]]
    for part in conjuncts(nest.realize.predicate):
        if not any(mentions(part, var) for var in own):
            parts.append(part)
    return Analyzer().simplify(tirx.all(*parts)) if parts else const(True, "bool")
