"""1.4: takes equal axes for inverse ones."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "two transposes with equal axes are taken to cancel"
WHY = (
    "A permutation is its own inverse only if it swaps: (1, 0, 2) is, the rotation (1, 2, 0) "
    "is not. Compose the two and compare with (0, 1, 2)."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “When it must not fire”"


def _equal(inner, outer):
    if inner is None and outer is None:
        return True
    rank = len(outer if inner is None else inner)
    first, second = (
        list(reversed(range(rank))) if axes is None else [int(a) % rank for a in axes]
        for axes in (inner, outer)
    )
    return first == second


DropDoubleTranspose = dropping_pass(cancel=_equal)
