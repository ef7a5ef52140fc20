"""2.2: a function that has a global_symbol keeps it."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.2"
WHAT = "a function that was public before keeps its old public name"
WHY = (
    "The name the runtime looks for is the one in the dict. A PrimFunc's old global_symbol is "
    "what it was called where it was written, and two entries may share one PrimFunc."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “How it works”"


@tvm.transform.module_pass(opt_level=0, name="AttachAdditionalPrimFuncs")
class AttachAdditionalPrimFuncs:
    def __init__(self, functions):
        self.functions = dict(functions)

    def transform_module(self, mod, _ctx):
        result = mod.clone()
        for name, func in self.functions.items():
            has_one = "global_symbol" in func.attrs
            public = func if has_one else func.with_attr("global_symbol", name)
            taken = name in result and result[name].with_attr("global_symbol", name)
            if taken and not tvm_ffi.structural_equal(taken, public):
                raise ValueError(f"The module already has another function {name!r}.")
            result[name] = public
        return result
