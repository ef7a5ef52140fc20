"""3.8: a vector takes one element from each of several rows of w."""

from solutions.ch03_transpose_matmul.fuse_transpose_matmul import *

EXERCISE = "3.8"
WHAT = (
    "the outputs are vectorised, so that a vector takes one element from each of several rows of w"
)
WHY = (
    "Outputs need no rfactor, being independent, but their rows of w lie far apart: every lane is loaded by itself. "
    "Along k the elements lie side by side; rfactor makes the sum along k one that may be vectorised."
)
READ = "chapters/ch03_transpose_matmul/lesson.md, “Now make it fast”"


def schedule_decode(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    n, _ = weight_shape(func)
    sch = Schedule(func)
    product = sch.get_sblock("NT_matmul")
    *rows, j, k_loop = sch.get_loops(product)
    group, member = sch.split(j, [None, largest_divisor(n, lanes_of(func, target))])
    sch.reorder(group, *rows, k_loop, member)
    sch.vectorize(member)
    sch.parallel(group)
    sch.decompose_reduction(product, k_loop)
    return sch.mod["main"]
