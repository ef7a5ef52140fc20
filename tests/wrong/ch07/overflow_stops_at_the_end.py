"""7.6: an overflow gives the largest number."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.6"
WHAT = "a sum that overflows stays at the largest number"
WHY = "An integer type may saturate; a float overflows to infinity, and infinity minus 8000 is infinity."
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “Rounding”"


def predicted_half():
    return {"bias first": 2048, "bias last": 2148, "up first": 65504 - 8000, "up last": 60000}
