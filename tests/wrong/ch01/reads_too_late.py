"""1.4: x is put where the outer transpose stood, though a kernel wrote into it in between."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "x is read after a kernel has written into it"
WHY = (
    "call_tir_inplace stores its result in the memory of an argument. The inner transpose read x "
    "before that; what replaces the pair reads it after. `may_overwrite` says where to keep out."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “When it must not fire”"

DropDoubleTranspose = dropping_pass(careful=False)
