"""Does not ask whether the addend changes between the two blocks."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.3"
WHAT = "a bias that is computed between the two blocks read before it is there"
WHY = (
    "Fused, the addend is read at the first step. A block that writes it after the reduction began comes "
    "too late."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: who else sees it”"


def check_bystanders(fusion: Fusion) -> None:
    site, reduction, epilogue = fusion.site, fusion.reduction, fusion.epilogue
    local = any(fusion.temp.same_as(buffer) for buffer in site.scope.alloc_buffers)
    require(local, reduction, "others see its result")
    known = 1 + count(reduction, fusion.temp) + count(epilogue, fusion.temp)
    private = count(site.scope, fusion.temp) == known
    require(private, reduction, "others use its result")
    untouched = count(site.span, fusion.output) == count(epilogue, fusion.output)
    require(untouched, epilogue, "its output is used before it")
