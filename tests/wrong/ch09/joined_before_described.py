"""9.3: FuseOps comes before AnnotateTIROpPattern."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.3"
WHAT = "FuseOps runs before AnnotateTIROpPattern"
WHY = "FuseOps joins by the attribute op_pattern. Where no kernel has one yet, none is joined."
READ = "chapters/ch09_the_compiler/lesson.md, “Graph, then lower”"


def graph_and_lower(target):
    return [
        ch4.FuseAddRMSNorm(target),
        ch3.FuseTransposeMatmul(),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.AnnotateTIROpPattern(),
        transform.DeadCodeElimination(),
    ]
