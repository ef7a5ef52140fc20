"""1.4: looks one binding back and no further."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "a second name for the inner result hides the pair"
WHY = (
    "lookup_binding gives what the variable is bound to, and that may be another variable. Go "
    "on until it is a call or has no binding."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A mutator puts something else there”"


DropDoubleTranspose = dropping_pass(aliases=False)
