"""2.3: the module gets the attribute, its functions do not."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.3"
WHAT = "the attribute is on the module instead of on its functions"
WHY = (
    "`mod.with_attr` does return a new module, but the planner looks at the attributes of the "
    "function it plans, and never at the module's."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “How it works”"


@tvm.transform.module_pass(opt_level=0, name="AttachMemoryPlanAttr")
class AttachMemoryPlanAttr:
    def transform_module(self, mod, _ctx):
        return mod.with_attr("relax.memory_plan_dynamic_func_output", True)
