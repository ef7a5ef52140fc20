"""0.4: each step overwrites the one before."""

from tvm.script import tirx as T

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.4"
WHAT = "each step starts the sum anew"
WHY = (
    "A step of a sum adds to what the steps before left: total = total + a. Where each step stores a "
    "value of its own, or sets the total back first, only the last element is left."
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
                total[vi] = T.float32(0)
            total[vi] = a[vi, vk]
