"""Takes the epilogue's regions as they stand there."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.4"
WHAT = "regions that still speak of the epilogue's axes"
WHY = (
    "T.reads and T.writes are written with a block's own axes, like everything in it. In the reduction the "
    "epilogue's axes are variables that nobody defines: `substitute_region` rewrites a region."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Transformation”"


def fused_block(fusion: Fusion) -> SBlock:
    reduction, epilogue = fusion.reduction, fusion.epilogue
    total = BufferLoad(fusion.output, fusion.indices)
    step = replace_loads(reduction.body.value, fusion.temp, total)
    reads = [*epilogue.reads, *reduction.reads]
    return with_fields(
        reduction,
        reads=one_a_buffer([r for r in reads if not r.source.same_as(fusion.temp)]),
        writes=epilogue.writes,
        init=BufferStore(fusion.output, simplified(fusion.addend), fusion.indices),
        body=BufferStore(fusion.output, step, fusion.indices),
    )
