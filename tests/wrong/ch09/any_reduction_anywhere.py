"""9.4: kernels of many blocks are changed too."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.4"
WHAT = "epilogues are fused inside kernels of many blocks"
WHY = (
    "dlight's rule for softmax and rms_norm looks at all their blocks and moves them under one loop. "
    "With two of them made one it declines."
)
READ = "chapters/ch09_the_compiler/lesson.md, “When it must not fire”"


def fuse_its_epilogue(func):
    sch = Schedule(func)
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        users = sch.get_consumers(block) if is_reduction(sch.get(block)) else []
        if len(users) == 1 and not is_reduction(sch.get(users[0])):
            try:
                ch7.fuse_epilogue(sch, block, users[0])
            except ScheduleError:
                continue
            return sch.mod["main"]
    return func
