"""7.4 names block and buffer without quotes, and asks about all loads of the epilogue, those in indices too."""

from solutions.ch07_when_fusion_is_sound.soundness import *


def check_between(sch, pair):
    output = pair.output
    read = [load.source for load in nodes([pair.value, pair.indices], TensorLoad)]
    require(
        not mentions(pair.reduction, output),
        pair.epilogue,
        f"{output.name} is an operand of the reduction",
    )
    for block in others_between(pair.site):
        where = f"in block {block.name_hint}, between the two"
        require(not mentions(block, output), pair.epilogue, f"{output.name} is used {where}")
        for buffer in read:
            kept = buffer.same_as(output) or not may_write(block, buffer)
            require(kept, pair.epilogue, f"{buffer.name} may be written {where}")
