"""Looks at the outermost load of the addend only."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.3"
WHAT = "only the first buffer of the addend looked at"
WHY = (
    "In `C[vi, J[vj]]` two buffers are read. Whoever writes J between the two blocks changes which bias "
    "is taken."
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
    for load in nodes(fusion.addend, TensorLoad)[-1:]:
        written = may_write(site.span, load.source)
        require(not written, epilogue, "its addend is written before it")
