"""1.5: calls with_attr and drops what it returns."""

from solutions.ch01_walk_the_ir.walk_the_ir import *

EXERCISE = "1.5"
WHAT = "the function with the attribute is never put into the module"
WHY = (
    "Functions are immutable: with_attr returns a new one and leaves the old as it is. The "
    "module holds it only once it is stored there."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A pass is a function”"


@tvm.transform.module_pass(opt_level=0, name="AttachOrigin")
class AttachOrigin:
    def __init__(self, origin):
        self.origin = origin

    def transform_module(self, mod, _ctx):
        # BEGIN exercise 1.5 (about 5 lines): the same, without touching the caller's module
        result = mod.clone()
        for func in result.functions.values():
            if isinstance(func, relax.Function):
                func.with_attr("course.origin", self.origin)
        return result
        # END exercise 1.5
