"""9.1: a symbol that first appears in a match_cast is missed."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.1"
WHAT = "the dimension is only looked for in the parameters"
WHY = (
    "A dimension can also be named by a match_cast in between. `relax.analysis.defined_symbolic_vars` "
    "lists all that a function defines."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Attach”"


@tvm.transform.module_pass(opt_level=0, name="BindKnownSizes")
class BindKnownSizes:
    def __init__(self, sizes):
        self.sizes = dict(sizes)

    def transform_module(self, mod, _ctx):

        result = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                own = [v for p in func.params for v in relax.analysis.tir_vars_in_type(p.ty)]
                known = {var: self.sizes[var.name] for var in own if var.name in self.sizes}
                result[gvar] = func.bind_symbolic_vars(known) if known else func
        return result
