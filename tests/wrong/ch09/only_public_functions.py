"""9.1: private functions keep the symbol."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.1"
WHAT = "only public functions are bound"
WHY = (
    "A private function is called by the others, with tensors of the bound size: its kernels would be "
    "built for any size, and be slow."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Attach”"


@tvm.transform.module_pass(opt_level=0, name="BindKnownSizes")
class BindKnownSizes:
    def __init__(self, sizes):
        self.sizes = dict(sizes)

    def transform_module(self, mod, _ctx):

        result = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function) and "global_symbol" in (func.attrs or {}):
                own = relax.analysis.defined_symbolic_vars(func)
                known = {var: self.sizes[var.name] for var in own if var.name in self.sizes}
                result[gvar] = func.bind_symbolic_vars(known) if known else func
        return result
