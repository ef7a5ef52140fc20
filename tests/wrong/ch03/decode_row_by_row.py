"""3.8: one row of x after the other."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.8"
WHAT = "a row of x is done with w before the next begins, so that each row reads w again"
WHY = (
    "With one row that is the same. With four, w comes from the cache four times, and a vector of it is loaded for "
    "one multiply-add instead of four: inside a step along k there is room for the sums of all rows."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Now make it fast”"


def schedule_decode(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    _, k = weight_shape(func)
    lanes, members = largest_divisor(k, lanes_of(func, target)), side_by_side(func, target)
    sch = Schedule(func)
    product = sch.get_sblock("NT_matmul")
    *rows, j, k_loop = sch.get_loops(product)
    _, lane = sch.split(k_loop, [None, lanes])
    partial = sch.rfactor(lane, factor_axis=len(rows) + 1)
    *rows, j, lane = sch.get_loops(product)  # out[…, j] = the sum of partial[…, j, lane]
    group, member = sch.split(j, [None, members])
    sch.reorder(group, *rows, lane, member)
    sch.compute_at(partial, group, preserve_unit_loops=True)
    _, partial_lane, *rows, partial_member, chunk = sch.get_loops(partial)
    sch.reorder(*rows, chunk, partial_member, partial_lane)
    sch.unroll(partial_member)
    sch.vectorize(partial_lane)
    sch.parallel(group)
    sch.decompose_reduction(product, lane)
    sch.decompose_reduction(partial, chunk)
    return sch.mod["main"]
