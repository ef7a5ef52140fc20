"""9.4: the fused function has no attributes."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.4"
WHAT = "the attributes of the function are lost"
WHY = (
    "tirx.noalias, for one, tells LLVM that buffers do not overlap; without it every store may change "
    "what the next load reads."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Schedule”"


def fuse_its_epilogue(func):
    sch = Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    if len(blocks) != 2 or not is_reduction(sch.get(blocks[0])) or is_reduction(sch.get(blocks[1])):
        return func
    try:
        ch7.fuse_epilogue(sch, *blocks)
    except ScheduleError:
        return func
    fused = sch.mod["main"]
    return tirx.PrimFunc(fused.params, fused.body)
