"""7.4: nobody is expected to write the sums."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.4"
WHAT = "a block in between that writes the sums is let through"
WHY = "The epilogue reads the sums too, and now before that block: whatever it does to them comes too late."
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “Who else looks”"


def check_between(sch, pair):
    output = pair.output.name
    used = mentions(pair.reduction, pair.output)
    require(not used, pair.epilogue, f"the reduction uses `{output}`")
    operands = {load.source for load in nodes(pair.value, TensorLoad)} - {pair.output, pair.temp}
    for block in others_between(pair.site):
        name = block.name_hint
        used = mentions(block, pair.output)
        require(not used, pair.epilogue, f"block `{name}` uses `{output}` before it")
        for operand in operands:
            stable = not may_write(block, operand)
            require(stable, pair.epilogue, f"block `{name}` may write `{operand.name}` before it")
