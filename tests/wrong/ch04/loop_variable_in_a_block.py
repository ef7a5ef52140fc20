"""4.3: the register is named by the loop around the block."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.3"
WHAT = "a loop variable used inside a block"
WHY = (
    "The loops around a block may be split or exchanged, so a block names elements by its axes "
    "only. Element h of the row is number `h // threads` of those that its thread holds."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


def row_kernel(dims, hidden_size, dtype, epsilon, threads):
    per_thread = elements_per_thread(hidden_size, threads)
    rows = math.prod(dims, start=tirx.IntImm("int64", 1))
    shape, at = [*dims, hidden_size], lambda row: row_index(row, dims)

    @T.prim_func(private=True, s_tir=True)
    def add_norm(p_x1: T.handle, p_x2: T.handle, p_total: T.handle):
        x1 = T.match_buffer(p_x1, shape, dtype)
        x2 = T.match_buffer(p_x2, shape, dtype)
        total = T.match_buffer(p_total, shape, dtype)
        held = T.sblock_alloc_buffer((per_thread,), dtype, scope="local")
        for block in T.thread_binding(rows, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                for i in T.unroll(per_thread):
                    with T.sblock("add"):
                        row = T.axis.spatial(rows, block)
                        h = T.axis.spatial(hidden_size, i * threads + thread)
                        T.where(i * threads + thread < hidden_size)
                        held[i] = x1[(*at(row), h)] + x2[(*at(row), h)]
                        total[(*at(row), h)] = held[i]

    return add_norm
