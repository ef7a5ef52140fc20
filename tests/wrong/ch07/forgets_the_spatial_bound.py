"""7.3: what a split adds on spatial loops is dropped."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.3"
WHAT = "of the reduction's predicate nothing is kept"
WHY = (
    "A split of 5 columns into 3 x 2 runs 6 times and cuts one off by a predicate. Without it the "
    "epilogue also runs at column 5, which does not exist."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “The last step”"


def last_step(nest):
    own = [loop.loop_var for loop in reduction_loops(nest)]
    parts = [EQ(loop.loop_var, loop.min + loop.extent - 1) for loop in reduction_loops(nest)]
    for part in conjuncts(nest.realize.predicate):
        if not any(mentions(part, var) for var in own):
            continue
    return Analyzer().simplify(tirx.all(*parts)) if parts else const(True, "bool")
