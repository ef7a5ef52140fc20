"""9.3: FuseTransposeMatmul comes after LegalizeOps."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.3"
WHAT = "FuseTransposeMatmul runs after LegalizeOps and finds nothing"
WHY = (
    "LegalizeOps turns permute_dims and matmul into calls of kernels. The pattern speaks of "
    "operators: it matches none, and the pass returns the module without a word."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Graph, then lower”"


def graph_and_lower(target):
    # BEGIN exercise 9.3 (about 10 lines): the same passes, in an order in which each still finds what it looks for
    return [
        ch4.FuseAddRMSNorm(target),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        ch3.FuseTransposeMatmul(),
        transform.AnnotateTIROpPattern(),
        FoldReadOnlyConstants(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
    ]
    # END exercise 9.3
