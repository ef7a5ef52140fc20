"""9.6: KillAfterLastUse comes before the plan."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.6"
WHAT = "KillAfterLastUse runs before the plan"
WHY = (
    "It inserts the end of each tensor's life. The planner, which wants to decide that itself, then "
    "leaves those tensors alone."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Memory, then VM”"


def memory_phase(target):
    capture = [transform.RewriteCUDAGraph()] if target.kind.name == "cuda" else []
    return [
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.KillAfterLastUse(),
        transform.StaticPlanBlockMemory(),
        *capture,
        transform.LowerAllocTensor(),
    ]
