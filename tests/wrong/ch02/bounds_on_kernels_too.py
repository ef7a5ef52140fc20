"""2.1: PrimFuncs get the attributes as well."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.1"
WHAT = "PrimFuncs get the attributes too"
WHY = (
    "`functions_items` gives every function of the module. A PrimFunc's attributes are read by "
    "other passes, and change its identity: two equal kernels are no longer one."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachVariableBounds")
class AttachVariableBounds:
    def __init__(self, variable_bounds):
        self.bounds = {name: bound for name, bound in variable_bounds.items() if bound > 0}

    def transform_module(self, mod, _ctx):
        attrs = {"tir_var_upper_bound": self.bounds, "tir_non_negative_var": ["vocab_size"]}
        result = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function | tirx.PrimFunc):
                result[gvar] = func.with_attrs(attrs)
        return result
