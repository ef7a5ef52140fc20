"""1.5: copies the module after it has been changed."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.5"
WHAT = "the copy is made when the caller's module is already changed"
WHY = (
    "Clone first and store into the clone. A copy of the changed module protects nobody, and "
    "the attribute is now in both."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A pass is a function”"


@tvm.transform.module_pass(opt_level=0, name="AttachOrigin")
class AttachOrigin:
    def __init__(self, origin):
        self.origin = origin

    def transform_module(self, mod, _ctx):
        # BEGIN exercise 1.5 (about 5 lines): the same, without touching the caller's module
        for name, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod[name] = func.with_attr("course.origin", self.origin)
        result = tvm.IRModule({})
        result.update(mod)
        return result
        # END exercise 1.5
