"""Renames the buffer and leaves the init at 0."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.4"
WHAT = "a fused block that still starts from 0"
WHY = "The bias has to stand somewhere. With 0 in the init it is lost."
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
        body=BufferStore(fusion.output, step, fusion.indices),
    )
