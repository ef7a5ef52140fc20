"""1.4: puts x where it cannot be seen."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "x is used outside of the dataflow block it belongs to"
WHY = (
    "A DataflowVar is visible in its own block only. If the inner transpose is that block's "
    "output, x is still inside. Neither relax.build nor the next pass objects; only "
    "well_formed does."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “When it must not fire”"


DropDoubleTranspose = dropping_pass(visible=False)
