"""1.4: does not remove what became dead."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "the inner transpose stays although nothing uses it any more"
WHY = (
    "A mutator replaces, it does not delete: the inner binding still stands there, and the "
    "pipeline launches it. remove_all_unused(func) takes it out."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A mutator puts something else there”"


DropDoubleTranspose = dropping_pass(clean=False)
