"""2.1: a function loses the attributes it had."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.1"
WHAT = "the attributes a function had are gone"
WHY = (
    "`num_input` tells later passes which parameters are weights, `global_symbol` makes a "
    "function public. with_attr and with_attrs add to what is there."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “How it works”"


@tvm.transform.module_pass(opt_level=0, name="AttachVariableBounds")
class AttachVariableBounds:
    def __init__(self, variable_bounds):
        self.bounds = {name: bound for name, bound in variable_bounds.items() if bound > 0}

    def transform_module(self, mod, _ctx):
        attrs = {"tir_var_upper_bound": self.bounds, "tir_non_negative_var": ["vocab_size"]}

        def attach(_name, func):
            for key in list(dict(func.attrs)):
                func = func.without_attr(key)
            return func.with_attrs(attrs)

        return map_relax_functions(mod, attach)
