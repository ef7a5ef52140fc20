"""9.6: RewriteCUDAGraph runs for llvm too."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.6"
WHAT = "graphs are captured for every target"
WHY = "A CPU has no graphs: the captured functions call a builtin that only a CUDA runtime has."
READ = "chapters/ch09_the_compiler/lesson.md, “Memory, then VM”"


def memory_phase(target):
    capture = [transform.RewriteCUDAGraph()]
    return [
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
        *capture,
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
    ]
