"""2.1: without bounds the module is returned as it came."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.1"
WHAT = "with no bounds left, nothing is attached at all"
WHY = (
    "`tir_non_negative_var` does not depend on the bounds, and an empty map is a statement too: "
    "it replaces bounds of an earlier run."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachVariableBounds")
class AttachVariableBounds:
    def __init__(self, variable_bounds):
        self.bounds = {name: bound for name, bound in variable_bounds.items() if bound > 0}

    def transform_module(self, mod, _ctx):
        if not self.bounds:
            return mod
        attrs = {"tir_var_upper_bound": self.bounds, "tir_non_negative_var": ["vocab_size"]}
        return map_relax_functions(mod, lambda _, func: func.with_attrs(attrs))
