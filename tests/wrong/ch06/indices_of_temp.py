"""Stores to the output at the indices at which the reduction stored to `temp`."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.4"
WHAT = "the output indexed as temp was"
WHY = (
    "The epilogue may store transposed, shifted or into another shape. `fusion.indices` says where."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Transformation”"


def fused_block(fusion: Fusion) -> SBlock:
    reduction, epilogue = fusion.reduction, fusion.epilogue
    where = reduction.body.indices
    step = replace_loads(reduction.body.value, fusion.temp, BufferLoad(fusion.output, where))
    reads = [substitute_region(region, fusion.axes) for region in epilogue.reads]
    reads = [r for r in [*reads, *reduction.reads] if not r.source.same_as(fusion.temp)]
    writes = [substitute_region(region, fusion.axes) for region in epilogue.writes]
    return with_fields(
        reduction,
        reads=one_a_buffer(reads),
        writes=writes,
        init=BufferStore(fusion.output, fusion.addend, where),
        body=BufferStore(fusion.output, step, where),
    )
