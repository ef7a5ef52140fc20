"""Keeps one region a buffer, the first."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.4"
WHAT = "one of two reads of the same buffer left out of T.reads"
WHY = (
    "Where the bias is also an operand, the block reads two regions of one buffer. The declaration must "
    "cover both."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Transformation”"


def fused_block(fusion: Fusion) -> SBlock:
    reduction, epilogue = fusion.reduction, fusion.epilogue
    total = BufferLoad(fusion.output, fusion.indices)
    step = replace_loads(reduction.body.value, fusion.temp, total)
    reads = [substitute_region(region, fusion.axes) for region in epilogue.reads]
    reads = [r for r in [*reads, *reduction.reads] if not r.source.same_as(fusion.temp)]
    first = {}
    for region in reads:
        first.setdefault(region.source, region)
    writes = [substitute_region(region, fusion.axes) for region in epilogue.writes]
    return with_fields(
        reduction,
        reads=list(first.values()),
        writes=writes,
        init=BufferStore(fusion.output, fusion.addend, fusion.indices),
        body=BufferStore(fusion.output, step, fusion.indices),
    )
