"""1.4: never puts the new function into the module."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.4"
WHAT = "the rewritten functions never reach the module that is returned"
WHY = (
    "visit_expr returns a new function and leaves the old one as it was. The module holds it "
    "once you call builder_.update_func(name, func), or store it in a clone."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A pass is a function”"


@tvm.transform.module_pass(opt_level=0, name="DropDoubleTranspose")
class DropDoubleTranspose:
    def transform_module(self, mod, _ctx):
        result = mod.clone()
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                relax.analysis.remove_all_unused(TransposeDropper(mod).visit_expr(func))
        return result
