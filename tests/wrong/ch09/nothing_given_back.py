"""9.6: KillAfterLastUse is missing."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.6"
WHAT = "KillAfterLastUse is left out"
WHY = (
    "Storage then lives until the function returns, and a server holds memory for tensors that nobody "
    "will read."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Memory, then VM”"


def memory_phase(target):
    capture = [transform.RewriteCUDAGraph()] if target.kind.name == "cuda" else []
    return [
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
        *capture,
        transform.LowerAllocTensor(),
    ]
