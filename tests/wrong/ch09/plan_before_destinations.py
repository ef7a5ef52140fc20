"""9.6: StaticPlanBlockMemory comes before CallTIRRewrite."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.6"
WHAT = "the plan is made before any call has a destination"
WHY = (
    "The planner shares storage among allocations. Before CallTIRRewrite there are none: call_tir "
    "returns its result."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Memory, then VM”"


def memory_phase(target):
    capture = [transform.RewriteCUDAGraph()] if target.kind.name == "cuda" else []
    return [
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.StaticPlanBlockMemory(),
        transform.CallTIRRewrite(),
        *capture,
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
    ]
