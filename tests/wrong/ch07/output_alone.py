"""7.4: only the output is looked after."""

from solutions.ch07_when_fusion_is_sound.soundness import *

EXERCISE = "7.4"
WHAT = "only the output is looked after, not what the epilogue reads"
WHY = (
    "The epilogue runs earlier than before. A block in between that writes the bias, or the sums, then "
    "comes too late: the epilogue has read the old values."
)
READ = "chapters/ch07_when_fusion_is_sound/lesson.md, “Who else looks”"


def check_between(sch, pair):
    # BEGIN exercise 7.4 (about 12 lines): the reduction, and then every other block in between
    output = pair.output.name
    used = mentions(pair.reduction, pair.output)
    require(
        not used, pair.epilogue, f"the reduction uses `{output}`, which it would overwrite early"
    )
    for block in others_between(pair.site):
        name = block.name_hint
        used = mentions(block, pair.output)
        require(not used, pair.epilogue, f"block `{name}` uses `{output}` before it")
    # END exercise 7.4
