"""2.1: private Relax functions are left out."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.1"
WHAT = "private functions get no bounds"
WHY = (
    "A private function has no `global_symbol`, and its memory is planned like any other's. What "
    "makes a function one to bound is that it is a relax.Function."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “How it works”"


@tvm.transform.module_pass(opt_level=0, name="AttachVariableBounds")
class AttachVariableBounds:
    def __init__(self, variable_bounds):
        self.bounds = {name: bound for name, bound in variable_bounds.items() if bound > 0}

    def transform_module(self, mod, _ctx):
        attrs = {"tir_var_upper_bound": self.bounds, "tir_non_negative_var": ["vocab_size"]}

        def attach(_name, func):
            is_public = "global_symbol" in func.attrs
            return func.with_attrs(attrs) if is_public else func

        return map_relax_functions(mod, attach)
