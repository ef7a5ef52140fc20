"""7.7: an epilogue that the built-in refuses."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.7"
WHAT = "the built-in refuses this program"
WHY = (
    "The built-in does notice a product and a second use of the sum. It does not notice what stands "
    "around `temp + addend`."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “Break it”"


def breaks_the_builtin():
    return Case("mine", "my own", value="s * s + C[wi, wj]")
