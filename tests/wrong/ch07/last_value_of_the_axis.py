"""7.3: the last value of the axis, not the last iteration."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.3"
WHAT = "the predicate asks for the last value of the reduction axis"
WHY = (
    "With 5 steps split into 3 x 2 and the inner loop outside, the order is 0 2 4 1 3: the step with "
    "value 4 is the third. Ask for the last iteration of each loop instead."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “The last step”"


def last_step(nest):
    own = [loop.loop_var for loop in reduction_loops(nest)]
    reduction_loops(nest)
    values = zip(nest.block.iter_vars, nest.realize.iter_values, strict=True)
    summed = [(axis, value) for axis, value in values if axis.iter_type == IterVar.CommReduce]
    parts = [EQ(value, axis.dom.min + axis.dom.extent - 1) for axis, value in summed]
    for part in conjuncts(nest.realize.predicate):
        if not any(mentions(part, var) for var in own):
            parts.append(part)
    return Analyzer().simplify(tirx.all(*parts)) if parts else const(True, "bool")
