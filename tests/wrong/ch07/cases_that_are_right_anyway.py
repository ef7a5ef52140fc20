"""7.5: for each condition a case that its absence does not hurt."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.5"
WHAT = "the cases are right even without their condition"
WHY = (
    "A case that stays right shows nothing about the condition. Take one that is refused or fused "
    "another way because of it."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “When it must refuse”"


def counterexamples():
    return dict.fromkeys(
        ["each point once", "nobody between", "own element", "sums unseen", "order of rounding"],
        "relu",
    )
