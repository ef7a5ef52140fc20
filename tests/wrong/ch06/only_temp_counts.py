"""Asks who uses `temp`, and nothing else."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.3"
WHAT = "only temp looked at, not the bias and the output"
WHY = (
    "The bias is read earlier than before and the output written earlier. Whoever writes the one or uses "
    "the other in between notices."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: who else sees it”"


def check_bystanders(fusion: Fusion) -> None:
    site, reduction, epilogue = fusion.site, fusion.reduction, fusion.epilogue
    local = any(fusion.temp.same_as(buffer) for buffer in site.scope.alloc_buffers)
    require(local, reduction, "others see its result")
    known = 1 + count(reduction, fusion.temp) + count(epilogue, fusion.temp)
    private = count(site.scope, fusion.temp) == known
    require(private, reduction, "others use its result")
