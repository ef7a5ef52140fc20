"""2.1: bounds of -1 and 0 are attached too."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.1"
WHAT = "bounds that say nothing are passed on to the planner"
WHY = (
    "A model without a limit says -1, as recurrent ones do. Taken for a bound, it makes every "
    "tensor of that dimension empty or negative in size."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachVariableBounds")
class AttachVariableBounds:
    def __init__(self, variable_bounds):
        self.bounds = dict(variable_bounds)

    def transform_module(self, mod, _ctx):
        attrs = {"tir_var_upper_bound": self.bounds, "tir_non_negative_var": ["vocab_size"]}
        return map_relax_functions(mod, lambda _, func: func.with_attrs(attrs))
