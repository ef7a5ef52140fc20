"""1.4: dead code elimination on the whole module."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "DeadCodeElimination removes functions too, those that nothing in the module calls"
WHY = (
    "A later pass may call them, or the runtime by name. What this pass made dead are bindings: "
    "relax.analysis.remove_all_unused(func) takes those out, one function at a time."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “When it must not fire”"

Dropping = dropping_pass(clean=False)


@tvm.transform.module_pass(opt_level=0, name="DropDoubleTranspose")
class DropDoubleTranspose:
    def transform_module(self, mod, _ctx):
        return relax.transform.DeadCodeElimination()(Dropping()(mod))
