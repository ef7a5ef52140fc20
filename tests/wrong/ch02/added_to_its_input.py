"""2.2: the functions are added to the module that was given."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.2"
WHAT = "the pass adds the functions to the module it was given"
WHY = "`mod[name] = func` on the argument changes the caller's module. Add to `mod.clone()`."
READ = "chapters/ch01_walk_the_ir/lesson.md, “A pass is a function”"


@tvm.transform.module_pass(opt_level=0, name="AttachAdditionalPrimFuncs")
class AttachAdditionalPrimFuncs:
    def __init__(self, functions):
        self.functions = dict(functions)

    def transform_module(self, mod, _ctx):
        result = mod
        for name, func in self.functions.items():
            public = func.with_attr("global_symbol", name)
            taken = name in result and result[name].with_attr("global_symbol", name)
            if taken and not tvm_ffi.structural_equal(taken, public):
                raise ValueError(f"The module already has another function {name!r}.")
            result[name] = public
        return result
