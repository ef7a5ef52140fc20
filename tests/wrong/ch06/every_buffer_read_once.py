"""A program in which every buffer is read at one place."""

from solutions.ch06_reduction_epilogue.fuse_reduction_epilogue import *

EXERCISE = "6.8"
WHAT = "a program in which no buffer is read twice"
WHY = (
    "The built-in declares each buffer with one region. Nothing gets lost as long as each is read at one "
    "place only."
)
READ = "chapters/ch06_reduction_epilogue/lesson.md, “Break it”"


def lost_read() -> PrimFunc:
    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((4, 4), "int32"),
        B: T.Buffer((4, 4), "int32"),
        C: T.Buffer((4, 4), "int32"),
        D: T.Buffer((4, 4), "int32"),
    ):
        temp = T.sblock_alloc_buffer((4, 4), "int32")
        for i, j, k in T.grid(4, 4, 4):
            with T.sblock("matmul"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    temp[vi, vj] = 0
                temp[vi, vj] = temp[vi, vj] + A[vi, vk] * B[vk, vj]
        for i, j in T.grid(4, 4):
            with T.sblock("bias"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = temp[vi, vj] + C[vi, vj]

    return main
