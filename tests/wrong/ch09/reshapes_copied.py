"""9.6: RewriteDataflowReshape comes after ToNonDataflow."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.6"
WHAT = "reshapes are kernels that copy"
WHY = (
    "RewriteDataflowReshape looks into dataflow blocks. After ToNonDataflow there are none, and each "
    "reshape stays a kernel that copies its tensor."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Memory, then VM”"


def memory_phase(target):
    capture = [transform.RewriteCUDAGraph()] if target.kind.name == "cuda" else []
    return [
        transform.ToNonDataflow(),
        transform.RewriteDataflowReshape(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
        *capture,
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
    ]
