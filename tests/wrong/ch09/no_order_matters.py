"""9.8: every change is harmless."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.8"
WHAT = "every change of order is taken to be harmless"
WHY = (
    "Most are silent, which is not the same: a pass that comes too late finds nothing and says "
    "nothing. Only the cost tells."
)
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
        "same",
    )
