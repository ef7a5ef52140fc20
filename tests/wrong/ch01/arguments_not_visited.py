"""1.4: the mutator rewrites a call and never asks about its arguments."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "the arguments of a call are not visited before the call is looked at"
WHY = (
    "A variable whose value was rewritten may be a new one, of a more exact type. Only a call that is "
    "visited with `super().visit_call_(call)` is given the new variable; the others still use the old "
    "one, which nothing defines any more."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A mutator puts something else there”"


DropDoubleTranspose = dropping_pass(inside=False)
