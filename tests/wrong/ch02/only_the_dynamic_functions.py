"""2.3: only functions with a symbolic shape in their result are marked."""

from solutions.ch02_attach_metadata.attach_support_info import *

EXERCISE = "2.3"
WHAT = "functions of static shape are left out"
WHY = (
    "The attribute allows, it does not demand: on a function of static shape it does nothing. "
    "Guessing where it would matter is the planner's business, and an `if` more to get wrong."
)
READ = "chapters/ch02_attach_metadata/lesson.md, “How it works”"


@tvm.transform.module_pass(opt_level=0, name="AttachMemoryPlanAttr")
class AttachMemoryPlanAttr:
    def transform_module(self, mod, _ctx):
        def attach(_name, func):
            if not relax.analysis.free_symbolic_vars(
                func
            ) and not relax.analysis.defined_symbolic_vars(func):
                return func
            return func.with_attr("relax.memory_plan_dynamic_func_output", True)

        return map_relax_functions(mod, attach)
