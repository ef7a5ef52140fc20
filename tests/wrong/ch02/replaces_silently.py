"""2.2: a function of the same name is replaced."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.2"
WHAT = "a function that was there is replaced without a word"
WHY = (
    "`mod[name] = func` overwrites. Whoever called the old function by that name now runs the new "
    "one; the module stays well-formed and computes something else."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachAdditionalPrimFuncs")
class AttachAdditionalPrimFuncs:
    def __init__(self, functions):
        self.functions = dict(functions)

    def transform_module(self, mod, _ctx):
        result = mod.clone()
        for name, func in self.functions.items():
            result[name] = func.with_attr("global_symbol", name)
        return result
