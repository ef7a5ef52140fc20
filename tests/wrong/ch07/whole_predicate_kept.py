"""7.3: all of the reduction's predicate is kept."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.3"
WHAT = "the reduction's whole predicate is kept, its reduction part too"
WHY = (
    "With 5 steps split into 3 x 2 the last iteration of both loops is the cut-off sixth: its predicate "
    "is false there, and the epilogue would never run. Keep only what the other loops decide."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “The last step”"


def last_step(nest):
    parts = [EQ(loop.loop_var, loop.min + loop.extent - 1) for loop in reduction_loops(nest)]
    parts += conjuncts(nest.realize.predicate)
    return Analyzer().simplify(tirx.all(*parts)) if parts else const(True, "bool")
