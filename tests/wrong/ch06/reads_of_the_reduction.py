"""Leaves the reduction's reads as they were."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.4"
WHAT = "a bias that is read and not declared"
WHY = (
    "The init reads the bias now. A primitive that believes T.reads may move the block that computes it "
    "to after this one."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Transformation”"


def fused_block(fusion: Fusion) -> SBlock:
    reduction, epilogue = fusion.reduction, fusion.epilogue
    total = BufferLoad(fusion.output, fusion.indices)
    step = replace_loads(reduction.body.value, fusion.temp, total)
    reads = reduction.reads
    writes = [substitute_region(region, fusion.axes) for region in epilogue.writes]
    return with_fields(
        reduction,
        reads=reads,
        writes=writes,
        init=BufferStore(fusion.output, fusion.addend, fusion.indices),
        body=BufferStore(fusion.output, step, fusion.indices),
    )
