"""Sizes are bound by TVM's own BindSymbolicVars, function by function; passes that commute change places."""

from solutions.ch09_the_compiler.pipeline import *


@tvm.transform.module_pass(opt_level=0, name="BindKnownSizes")
class BindKnownSizes:
    def __init__(self, sizes):
        self.sizes = dict(sizes)

    def transform_module(self, mod, _ctx):
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                names = {var.name for var in relax.analysis.defined_symbolic_vars(func)}
                known = {name: size for name, size in self.sizes.items() if name in names}
                if known:
                    mod = transform.BindSymbolicVars(known, gvar.name_hint)(mod)
        return mod


def graph_and_lower(target):
    return [
        ch3.FuseTransposeMatmul(),
        ch4.FuseAddRMSNorm(target),
        transform.LegalizeOps(),
        FoldReadOnlyConstants(),
        transform.AnnotateTIROpPattern(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
    ]
