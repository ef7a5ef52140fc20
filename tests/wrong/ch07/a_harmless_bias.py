"""7.7: an epilogue that the built-in does right."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.7"
WHAT = "the built-in is right on this program"
WHY = (
    "A sum of temp and one addend is what the built-in is made for. Put something around it, or around "
    "the sum beside it."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “Break it”"


def breaks_the_builtin():
    return Case("mine", "my own", value="s + C[wi, wj] * E[wi, wj]")
