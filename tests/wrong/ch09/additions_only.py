"""9.4: chapter 6's primitive is used."""

from solutions.ch09_the_compiler.pipeline import *

EXERCISE = "9.4"
WHAT = "only additions are fused"
WHY = (
    "Chapter 6 puts a bias into the init and refuses the rest. Chapter 7 applies any other epilogue "
    "after the last step, as the attention scores need it."
)
READ = "chapters/ch09_the_compiler/lesson.md, “Schedule”"


ch6 = earlier(6)


def fuse_its_epilogue(func):
    sch = Schedule(func)
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    if len(blocks) != 2 or not is_reduction(sch.get(blocks[0])) or is_reduction(sch.get(blocks[1])):
        return func
    try:
        ch6.fuse_reduction_epilogue(sch, *blocks)
    except ScheduleError:
        return func
    return sch.mod["main"]
