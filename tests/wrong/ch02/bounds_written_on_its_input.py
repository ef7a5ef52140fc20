"""2.1: the attributes are written into the module that was given."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.1"
WHAT = "the pass writes on the module it was given"
WHY = (
    "`mod[gvar] = func` changes `mod` in place: the caller's module has the attributes too, and "
    "comparing it with the result shows no difference at all. Write on `mod.clone()`."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A pass is a function”"


@tvm.transform.module_pass(opt_level=0, name="AttachVariableBounds")
class AttachVariableBounds:
    def __init__(self, variable_bounds):
        self.bounds = {name: bound for name, bound in variable_bounds.items() if bound > 0}

    def transform_module(self, mod, _ctx):
        attrs = {"tir_var_upper_bound": self.bounds, "tir_non_negative_var": ["vocab_size"]}
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod[gvar] = func.with_attrs(attrs)
        return mod
