"""0.4: the reduction has no init."""

from tvm.script import tirx as T

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.4"
WHAT = "the reduction never sets its accumulator"
WHY = (
    "Without `with T.init():` the first addition reads whatever the output buffer held. On "
    "fresh memory that is often zero, so the mistake passes a careless test."
)
READ = "chapters/ch00_first_module/lesson.md, “A PrimFunc”"


@T.prim_func(s_tir=True)
def row_sums(
    a: T.Buffer((6, 16), "float32"),
    total: T.Buffer((6,), "float32"),
):
    for i, k in T.grid(6, 16):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            # BEGIN exercise 0.4 (about 3 lines): the sum must not depend on what `total` held before
            total[vi] = total[vi] + a[vi, vk]
            # END exercise 0.4
