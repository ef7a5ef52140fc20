"""2.3: upstream's loop, which changes the module it is given."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.3"
WHAT = "the pass still writes on the module it was given"
WHY = (
    "`mod[gvar] = func` changes `mod`, and `result = mod` would only be a second name for it. Of "
    "two modules that must differ, one has to be a copy: `mod.clone()`, or map_relax_functions, "
    "which makes one."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A pass is a function”"


@tvm.transform.module_pass(opt_level=0, name="AttachMemoryPlanAttr")
class AttachMemoryPlanAttr:
    def transform_module(self, mod, _ctx):
        # BEGIN exercise 2.3 (about 3 lines): the same result, without a change to the module given
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                mod[gvar] = func.with_attr("relax.memory_plan_dynamic_func_output", True)
        return mod
        # END exercise 2.3
