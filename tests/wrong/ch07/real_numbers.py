"""7.6: the sums of real numbers."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.6"
WHAT = "the sums are those of real numbers, which have no rounding"
WHY = (
    "float16 keeps 11 bits: above 2048 it has only even numbers, so 2048 + 1 is 2048 again, a hundred "
    "times; and 68000 is beyond its end at 65504."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “Rounding”"


def predicted_half():
    return {"bias first": 2148, "bias last": 2148, "up first": 60000, "up last": 60000}
