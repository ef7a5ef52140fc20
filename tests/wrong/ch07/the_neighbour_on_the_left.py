"""7.5: the neighbour is read in the order in which it was before."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.5"
WHAT = "the case for “own element” reads a neighbour that is finished in the same order as before"
WHY = (
    "Reading the left neighbour is no harm where the reduction visits left before right, as the "
    "epilogue did. Take a case where the order of the two differs."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “When it must refuse”"


def counterexamples():
    return {
        "each point once": "loops over four of six rows",
        "nobody between": "the bias written in between",
        "own element": "reads its left neighbour",
        "sums unseen": "the sums read afterwards",
        "order of rounding": "half precision 60000 up 8000 and down again",
    }
