"""7.4: readers of the bias and the sums are refused."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.4"
WHAT = "a block in between that only reads the bias or the sums is refused"
WHY = "Two reads may change places. Only a write between makes the early read another one."
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “Who else looks”"


def check_between(sch, pair):
    output = pair.output.name
    used = mentions(pair.reduction, pair.output)
    require(
        not used, pair.epilogue, f"the reduction uses `{output}`, which it would overwrite early"
    )
    operands = {load.source for load in nodes(pair.value, TensorLoad)} - {pair.output}
    for block in others_between(pair.site):
        name = block.name_hint
        used = mentions(block, pair.output)
        require(not used, pair.epilogue, f"block `{name}` uses `{output}` before it")
        for operand in operands:
            stable = not mentions(block, operand)
            require(stable, pair.epilogue, f"block `{name}` may write `{operand.name}` before it")
