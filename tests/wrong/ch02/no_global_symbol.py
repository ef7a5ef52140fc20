"""2.2: the functions are added as they are."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.2"
WHAT = "global_symbol is not set, so a private function stays private"
WHY = (
    "Nothing in the module calls these functions. Only `global_symbol` says that somebody outside "
    "will; without it dead-code elimination removes them."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “How it works”"


@tvm.transform.module_pass(opt_level=0, name="AttachAdditionalPrimFuncs")
class AttachAdditionalPrimFuncs:
    def __init__(self, functions):
        self.functions = dict(functions)

    def transform_module(self, mod, _ctx):
        result = mod.clone()
        for name, func in self.functions.items():
            public = func
            taken = name in result and result[name].with_attr("global_symbol", name)
            if taken and not tvm_ffi.structural_equal(taken, public):
                raise ValueError(f"The module already has another function {name!r}.")
            result[name] = public
        return result
