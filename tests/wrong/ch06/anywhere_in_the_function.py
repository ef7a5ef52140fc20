"""Refuses if anybody else uses the output or writes the bias, wherever it stands."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.3"
WHAT = "blocks before and after the two counted like blocks in between"
WHY = (
    "A block that made the bias earlier, or reads the output later, sees the same values as before. Only "
    "what runs between the first step and the epilogue can tell."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Analysis: who else sees it”"


def check_bystanders(fusion: Fusion) -> None:
    site, reduction, epilogue = fusion.site, fusion.reduction, fusion.epilogue
    local = any(fusion.temp.same_as(buffer) for buffer in site.scope.alloc_buffers)
    require(local, reduction, "others see its result")
    known = 1 + count(reduction, fusion.temp) + count(epilogue, fusion.temp)
    private = count(site.scope, fusion.temp) == known
    require(private, reduction, "others use its result")
    untouched = count(site.scope, fusion.output) == count(epilogue, fusion.output)
    require(untouched, epilogue, "its output is used elsewhere")
    for buffer in {load.source for load in nodes(fusion.addend, TensorLoad)}:
        require(not may_write(site.scope, buffer), epilogue, "its addend is written elsewhere")
