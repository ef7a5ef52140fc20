"""9.6: RewriteCUDAGraph is missing."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.6"
WHAT = "RewriteCUDAGraph is left out"
WHY = "Every kernel of a decode step is then launched by the host, one by one."
READ = "chapters/ch09_the_compiler/lesson.md, “Memory, then VM”"


def memory_phase(target):
    return [
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
    ]
