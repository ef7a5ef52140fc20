"""9.8: every change fails."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.8"
WHAT = "every change of order is taken to fail"
WHY = "Passes keep programs valid: wrong order rarely fails. It costs launches or memory."
READ = "chapters/ch09_the_compiler/lesson.md, “Graph, then lower”"


def consequences():
    return dict.fromkeys(
        [
            "FuseTransposeMatmul after LegalizeOps",
            "FuseAddRMSNorm after FuseTransposeMatmul",
            "StaticPlanBlockMemory before CallTIRRewrite",
            "KillAfterLastUse before StaticPlanBlockMemory",
            "ToNonDataflow before FuseTransposeMatmul",
            "FuseEpilogues before ApplyDefaultSchedule, for cuda",
        ],
        "fails",
    )
