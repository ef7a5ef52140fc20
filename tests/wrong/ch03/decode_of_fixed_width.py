"""3.8: sixteen lanes on every machine."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.8"
WHAT = "the number of lanes is written into the schedule and not taken from the target"
WHY = (
    "Sixteen lanes of float32 fill a register of AVX-512. With AVX2 each sum needs two registers, and "
    "there are half as many; lanes_of(func, target) says what fits."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Now make it fast”"


def schedule_decode(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    _, k = weight_shape(func)
    lanes, members = largest_divisor(k, 16), side_by_side(func, target)
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
    sch.parallel(group)
    sch.decompose_reduction(product, lane)
    sch.decompose_reduction(partial, chunk)
    return sch.mod["main"]
