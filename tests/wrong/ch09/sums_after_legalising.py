"""9.3: FuseAddRMSNorm comes after LegalizeOps."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.3"
WHAT = "FuseAddRMSNorm runs after LegalizeOps and finds nothing"
WHY = (
    "It looks for add and rms_norm. After LegalizeOps both are calls of kernels, and FuseOps does not "
    "join an addition with a reduction."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Graph, then lower”"


def graph_and_lower(target):
    return [
        ch3.FuseTransposeMatmul(),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        ch4.FuseAddRMSNorm(target),
        transform.AnnotateTIROpPattern(),
        FoldReadOnlyConstants(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
    ]
