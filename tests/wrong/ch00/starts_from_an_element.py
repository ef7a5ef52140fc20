"""0.4: the first element is counted twice."""

from tvm.script import tirx as T

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.4"
WHAT = "the sum starts from an element which is then added again"
WHY = (
    "The init runs before the first step, and the steps run over all of k: whatever the init "
    "holds is added to the whole sum. That is just what chapter 6 uses to add a bias."
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
            with T.init():
                total[vi] = a[vi, 0]
            total[vi] = total[vi] + a[vi, vk]
