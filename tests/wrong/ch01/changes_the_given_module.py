"""1.4: stores into the module it was given."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "the rewritten functions are stored in the caller's module"
WHY = (
    "mod[name] = new changes the module in place, and the caller still holds it. Store into "
    "mod.clone(), or into a BlockBuilder made from mod."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A pass is a function”"


DropDoubleTranspose = dropping_pass(fresh=False)
