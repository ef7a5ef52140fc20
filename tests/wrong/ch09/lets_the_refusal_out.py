"""9.4: a ScheduleError ends the compilation."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.4"
WHAT = "a refusal of chapter 7 is not caught"
WHY = (
    "A refusal says that this kernel is right as it is. It must not end the compilation of all "
    "others."
)
READ = "chapters/ch09_the_compiler/lesson.md, “When it must not fire”"


def fuse_its_epilogue(func):
    sch = Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    if len(blocks) != 2 or not is_reduction(sch.get(blocks[0])) or is_reduction(sch.get(blocks[1])):
        return func
    ch7.fuse_epilogue(sch, *blocks)
    return sch.mod["main"]
