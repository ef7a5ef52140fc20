"""2.1: the caller's dict is kept and filtered when the pass runs."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.1"
WHAT = "the pass holds on to its caller's dict"
WHY = (
    "A pass is often made long before it runs. If it keeps the dict itself, whatever the caller "
    "does with the dict in between changes the pass."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “When it must not fire”"


@tvm.transform.module_pass(opt_level=0, name="AttachVariableBounds")
class AttachVariableBounds:
    def __init__(self, variable_bounds):
        self.bounds = variable_bounds

    def transform_module(self, mod, _ctx):
        kept = {name: bound for name, bound in self.bounds.items() if bound > 0}
        attrs = {"tir_var_upper_bound": kept, "tir_non_negative_var": ["vocab_size"]}
        return map_relax_functions(mod, lambda _, func: func.with_attrs(attrs))
