"""2.2: also the same function is refused."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.2"
WHAT = "a name is refused although the function under it is the very same"
WHY = (
    "A pipeline may run the pass twice, or the model may already hold the kernel. Nothing is "
    "replaced by something else then; compare the two before you refuse."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachAdditionalPrimFuncs")
class AttachAdditionalPrimFuncs:
    def __init__(self, functions):
        self.functions = dict(functions)

    def transform_module(self, mod, _ctx):
        result = mod.clone()
        for name, func in self.functions.items():
            if name in mod:
                raise ValueError(f"The module already has a function {name!r}.")
            result[name] = func.with_attr("global_symbol", name)
        return result
