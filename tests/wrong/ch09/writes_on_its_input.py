"""9.1: no copy is made."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.1"
WHAT = "the module that was given is changed"
WHY = (
    "Whoever gave it still holds it, to compare with or to compile for another model size, and finds "
    "it bound."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Attach”"


@tvm.transform.module_pass(opt_level=0, name="BindKnownSizes")
class BindKnownSizes:
    def __init__(self, sizes):
        self.sizes = dict(sizes)

    def transform_module(self, mod, _ctx):

        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                own = relax.analysis.defined_symbolic_vars(func)
                known = {var: self.sizes[var.name] for var in own if var.name in self.sizes}
                mod[gvar] = func.bind_symbolic_vars(known) if known else func
        return mod
