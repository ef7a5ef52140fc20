"""1.4: does not count -1 from the end."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "negative axes are compared as if they were other dimensions"
WHY = "Axis -1 is the last dimension. Written with % rank, both spellings are one number."
READ = "chapters/ch01_walk_the_ir/lesson.md, “A mutator puts something else there”"


def _without_modulo(inner, outer):
    if inner is None and outer is None:
        return True
    rank = len(outer if inner is None else inner)
    first, second = (
        list(reversed(range(rank))) if axes is None else [int(a) for a in axes]
        for axes in (inner, outer)
    )
    return [first[axis] for axis in second] == list(range(rank))


DropDoubleTranspose = dropping_pass(cancel=_without_modulo)
