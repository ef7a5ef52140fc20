"""7.4: the reduction may use the output."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.4"
WHAT = "the reduction itself may use the output"
WHY = (
    "The first finished element overwrites its place in the output while the reduction still has sums "
    "to make, and they read from there."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “Who else looks”"


def check_between(sch, pair):
    output = pair.output.name
    require(bool(output), pair.epilogue, "")
    operands = {load.source for load in nodes(pair.value, TensorLoad)} - {pair.output}
    for block in others_between(pair.site):
        name = block.name_hint
        used = mentions(block, pair.output)
        require(not used, pair.epilogue, f"block `{name}` uses `{output}` before it")
        for operand in operands:
            stable = not may_write(block, operand)
            require(stable, pair.epilogue, f"block `{name}` may write `{operand.name}` before it")
