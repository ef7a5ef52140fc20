"""Gives the fused block the epilogue's name and annotations."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.4"
WHAT = "a fused block with the epilogue's name"
WHY = (
    "Whoever schedules the reduction goes on calling it by its name, and its annotations were made for "
    "it."
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
        init=BufferStore(fusion.output, fusion.addend, fusion.indices),
        body=BufferStore(fusion.output, step, fusion.indices),
        name_hint=epilogue.name_hint,
        annotations=epilogue.annotations,
    )
