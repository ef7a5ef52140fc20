"""9.3: FuseTIR is missing."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.3"
WHAT = "FuseTIR is left out, so what FuseOps joined stays a Relax function"
WHY = "FuseOps only puts calls together, into functions of their own. FuseTIR makes one kernel of each."
READ = "chapters/ch09_the_compiler/lesson.md, “Graph, then lower”"


def graph_and_lower(target):
    return [
        ch4.FuseAddRMSNorm(target),
        ch3.FuseTransposeMatmul(),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        FoldReadOnlyConstants(),
        transform.FuseOps(),
        transform.DeadCodeElimination(),
    ]
