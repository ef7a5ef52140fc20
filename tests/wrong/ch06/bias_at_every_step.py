"""Adds the bias in the step."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.4"
WHAT = "the bias added at every step"
WHY = (
    "The step runs once for each k. The bias is then in the result as many times as the reduction is "
    "long."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Transformation”"


def fused_block(fusion: Fusion) -> SBlock:
    reduction, epilogue = fusion.reduction, fusion.epilogue
    total = BufferLoad(fusion.output, fusion.indices)
    step = replace_loads(reduction.body.value, fusion.temp, total)
    reads = [substitute_region(region, fusion.axes) for region in epilogue.reads]
    reads = [r for r in [*reads, *reduction.reads] if not r.source.same_as(fusion.temp)]
    writes = [substitute_region(region, fusion.axes) for region in epilogue.writes]
    return with_fields(
        reduction,
        reads=one_a_buffer(reads),
        writes=writes,
        init=BufferStore(fusion.output, reduction.init.value, fusion.indices),
        body=BufferStore(fusion.output, step + fusion.addend, fusion.indices),
    )
