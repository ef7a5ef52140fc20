"""2.3: each function is written into a fresh copy; the last copy is returned."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.3"
WHAT = "only the last function has the attribute: each turn of the loop starts from a fresh copy"
WHY = (
    "The clone belongs before the loop. Inside it, every turn throws away what the turn before "
    "has attached."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “How it works”"


@tvm.transform.module_pass(opt_level=0, name="AttachMemoryPlanAttr")
class AttachMemoryPlanAttr:
    def transform_module(self, mod, _ctx):
        result = mod
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                result = mod.clone()
                result[gvar] = func.with_attr("relax.memory_plan_dynamic_func_output", True)
        return result
