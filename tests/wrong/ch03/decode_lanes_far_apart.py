"""3.8: the partial sums of all outputs are stored before any is added up."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.8"
WHAT = "the lane is the first dimension of the partial sums, so that the lanes of one output lie far apart"
WHY = (
    "rfactor puts the new axis where `factor_axis` says. In front, the partial sums of an output are as far apart as "
    "the result is large, and each vector of them is taken apart to be stored; last, they are one vector."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Now make it fast”"


def schedule_decode(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    _, k = weight_shape(func)
    lanes, members = largest_divisor(k, lanes_of(func, target)), side_by_side(func, target)
    sch = Schedule(func)
    product = sch.get_sblock("NT_matmul")
    *rows, j, k_loop = sch.get_loops(product)
    _, lane = sch.split(k_loop, [None, lanes])
    partial = sch.rfactor(lane, factor_axis=0)
    partial_lane, *rows, j, chunk = sorted_loops(sch, partial)
    group, member = sch.split(j, [None, members])
    sch.reorder(group, chunk, *rows, member, partial_lane)
    for loop in (*rows, member):
        sch.unroll(loop)
    sch.vectorize(partial_lane)
    sch.parallel(group)
    sch.decompose_reduction(partial, chunk)
    return sch.mod["main"]


def sorted_loops(sch: Schedule, partial: SBlockRV):
    """(lane, rows…, j, chunk), whatever order rfactor left them in."""
    *rows, j, chunk, lane = sch.get_loops(partial)
    return [lane, *rows, j, chunk]
