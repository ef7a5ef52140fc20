"""1.4: takes None for a permutation unlike all others."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "axes=None is not recognised as the reversal it stands for"
WHY = (
    "None is the default of permute_dims and reverses all dimensions. nn.Linear writes it, "
    "other importers write the axes out; both mean the same."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A mutator puts something else there”"


def _words(inner, outer):
    if inner is None or outer is None:
        return inner is None and outer is None
    return axes_cancel(inner, outer)


DropDoubleTranspose = dropping_pass(cancel=_words)
