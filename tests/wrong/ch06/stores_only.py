"""Takes a buffer for unwritten unless a store names it."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.3"
WHAT = "only stores counted as writes"
WHY = (
    "A block can match a region of C under another name and store to that, and a call can write through a "
    "pointer. Any mention that is not a plain read may be a write."
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
    stored = [store.buffer for store in nodes(site.span, BufferStore)]
    for load in nodes(fusion.addend, TensorLoad):
        written = any(load.source.same_as(buffer) for buffer in stored)
        require(not written, epilogue, "its addend is written before it")
