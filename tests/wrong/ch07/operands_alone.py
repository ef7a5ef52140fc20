"""7.4: the output is not looked after."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.4"
WHAT = "only what the epilogue reads is looked after, not the output"
WHY = (
    "A block in between that reads the output saw its old content, and one that writes it was "
    "overwritten by the epilogue. Both change places with the epilogue now."
)
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
        require(bool(output), pair.epilogue, name)
        for operand in operands:
            stable = not may_write(block, operand)
            require(stable, pair.epilogue, f"block `{name}` may write `{operand.name}` before it")
