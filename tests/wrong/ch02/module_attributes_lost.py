"""2.3: the copy has the functions only."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.3"
WHAT = "the new module has the functions and has lost the module's own attributes"
WHY = (
    "IRModule(functions) knows nothing but its functions: what the module itself carries is forgotten. Copy it "
    "with mod.clone(), or use map_relax_functions."
)
READ = "chapters/ch01_walk_the_ir/lesson.md, “A pass is a function”"


@tvm.transform.module_pass(opt_level=0, name="AttachMemoryPlanAttr")
class AttachMemoryPlanAttr:
    def transform_module(self, mod, _ctx):
        result = tvm.IRModule(mod.functions)
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                result[gvar] = func.with_attr("relax.memory_plan_dynamic_func_output", True)
        return result
