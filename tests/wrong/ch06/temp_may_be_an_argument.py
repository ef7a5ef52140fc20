"""Does not ask where `temp` is allocated."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.3"
WHAT = "a temp that the caller can see"
WHY = (
    "A buffer that is an argument outlives the function. Its contents are part of the result, even if "
    "nothing in the function reads them."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: who else sees it”"


def check_bystanders(fusion: Fusion) -> None:
    site, reduction, epilogue = fusion.site, fusion.reduction, fusion.epilogue
    users = [b for b in nodes(site.scope.body, SBlock) if mentions(b, fusion.temp)]
    require(len(users) == 2, reduction, "others use its result")
    untouched = count(site.span, fusion.output) == count(epilogue, fusion.output)
    require(untouched, epilogue, "its output is used before it")
    for buffer in {load.source for load in nodes(fusion.addend, TensorLoad)}:
        require(not may_write(site.span, buffer), epilogue, "its addend is written before it")
