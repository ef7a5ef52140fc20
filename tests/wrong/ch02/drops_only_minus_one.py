"""2.1: only -1 is dropped."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.1"
WHAT = "-1 is dropped, other values that are no bound are not"
WHY = (
    "No dimension of a tensor that is worth planning is at most 0. What counts is whether the "
    "bound is positive, not which number somebody chose for “unknown”."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachVariableBounds")
class AttachVariableBounds:
    def __init__(self, variable_bounds):
        self.bounds = {n: bound for n, bound in variable_bounds.items() if bound != -1}

    def transform_module(self, mod, _ctx):
        attrs = {"tir_var_upper_bound": self.bounds, "tir_non_negative_var": ["vocab_size"]}
        return map_relax_functions(mod, lambda _, func: func.with_attrs(attrs))
