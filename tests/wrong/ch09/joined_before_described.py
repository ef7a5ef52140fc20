"""9.3: FuseOps comes before AnnotateTIROpPattern."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.3"
WHAT = "FuseOps runs where no kernel has an op_pattern yet"
WHY = "AnnotateTIROpPattern describes kernels, and LegalizeOps makes them. Both come before anything can be joined."
READ = "chapters/ch09_the_compiler/lesson.md, “Graph, then lower”"


def graph_and_lower(target):
    return [
        ch4.FuseAddRMSNorm(target),
        ch3.FuseTransposeMatmul(),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        FoldReadOnlyConstants(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.AnnotateTIROpPattern(),
        transform.DeadCodeElimination(),
    ]
