"""Does not ask who uses the output between the two blocks."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.3"
WHAT = "the output's other users forgotten"
WHY = (
    "Before the fusion the output holds its old contents until the epilogue runs; after it, partial sums. "
    "A block in between that reads it, or the reduction itself, sees the difference."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: who else sees it”"


def check_bystanders(fusion: Fusion) -> None:
    site, reduction, epilogue = fusion.site, fusion.reduction, fusion.epilogue
    local = any(fusion.temp.same_as(buffer) for buffer in site.scope.alloc_buffers)
    require(local, reduction, "others see its result")
    known = 1 + count(reduction, fusion.temp) + count(epilogue, fusion.temp)
    private = count(site.scope, fusion.temp) == known
    require(private, reduction, "others use its result")
    for buffer in {load.source for load in nodes(fusion.addend, TensorLoad)}:
        require(not may_write(site.span, buffer), epilogue, "its addend is written before it")
