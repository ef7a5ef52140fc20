"""3.8: one thread does it all."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.8"
WHAT = "no loop around the sums is parallel"
WHY = (
    "One core cannot ask for all the memory bandwidth that a machine has, and decode is bound by reading "
    "w: groups of outputs are independent, so run them in parallel."
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
    sch.reorder(chunk, *rows, partial_member, partial_lane)
    for loop in (*rows, partial_member):
        sch.unroll(loop)
    sch.vectorize(partial_lane)
    sch.decompose_reduction(product, lane)
    sch.decompose_reduction(partial, chunk)
    return sch.mod["main"]
