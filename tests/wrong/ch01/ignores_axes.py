"""1.4: never looks at the axes."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "two transposes in a row are dropped whatever their axes"
WHY = (
    "The operator's name is half of what a call does, its attributes are the other half. "
    "Rotating the dimensions twice is no way back."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “When it must not fire”"


DropDoubleTranspose = dropping_pass(cancel=lambda inner, outer: True)
