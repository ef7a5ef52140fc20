"""Takes the addend from the epilogue as it stands there."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.4"
WHAT = "an addend that still speaks of the epilogue's axes"
WHY = (
    "An axis belongs to its block. In the reduction the epilogue's axes are variables that nobody "
    "defines."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Transformation”"


def fused_block(fusion: Fusion) -> SBlock:
    reduction, epilogue = fusion.reduction, fusion.epilogue
    total = BufferLoad(fusion.output, fusion.indices)
    step = replace_loads(reduction.body.value, fusion.temp, total)
    reads = [substitute_region(region, fusion.axes) for region in epilogue.reads]
    reads = [r for r in [*reads, *reduction.reads] if not r.source.same_as(fusion.temp)]
    writes = [substitute_region(region, fusion.axes) for region in epilogue.writes]
    value = epilogue.body.value
    addend = fusion.addend
    if isinstance(value, Add):
        addend = value.b if mentions(value.a, fusion.temp) else value.a
    return with_fields(
        reduction,
        reads=one_a_buffer(reads),
        writes=writes,
        init=BufferStore(fusion.output, addend, fusion.indices),
        body=BufferStore(fusion.output, step, fusion.indices),
    )
