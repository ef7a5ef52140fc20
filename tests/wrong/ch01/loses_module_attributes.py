"""1.4: builds the result from the functions alone."""

from solutions.ch01_walk_the_ir.walk_the_ir import *
from tests.wrong.ch01._dropper import dropping_pass

EXERCISE = "1.4"
WHAT = "the module's own attributes are lost"
WHY = (
    "IRModule(functions) knows nothing but its functions. mod.clone() keeps attributes and "
    "global information."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A pass is a function”"


_Drop = dropping_pass()


@tvm.transform.module_pass(opt_level=0, name="DropDoubleTranspose")
class DropDoubleTranspose:
    def transform_module(self, mod, _ctx):
        return tvm.IRModule(dict(_Drop()(mod).functions_items()))
