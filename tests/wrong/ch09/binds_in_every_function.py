"""9.1: functions without the symbol raise."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.1"
WHAT = "every function is asked to bind every size"
WHY = (
    "bind_symbolic_vars raises for a name that the function does not have, and most models have "
    "functions without a vocabulary: an empty cache, for instance."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Attach”"


@tvm.transform.module_pass(opt_level=0, name="BindKnownSizes")
class BindKnownSizes:
    def __init__(self, sizes):
        self.sizes = dict(sizes)

    def transform_module(self, mod, _ctx):

        result = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function) and self.sizes:
                result[gvar] = func.bind_symbolic_vars(self.sizes)
        return result
