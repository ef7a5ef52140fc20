"""4.3: all five steps in one loop over the threads."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.3"
WHAT = "all five steps in one loop over the threads"
WHY = (
    "Step 4 becomes an exchange where its loop over the threads ends. Whoever needs the sum stands in a new "
    "loop over the threads after it."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


def row_kernel(dims, hidden_size, dtype, epsilon, threads):
    rows = math.prod(dims, start=tirx.IntImm("int64", 1))
    shape, at = [*dims, hidden_size], lambda row: row_index(row, dims)
    per_thread = math.ceil(hidden_size / threads)

    @T.prim_func(private=True, s_tir=True)
    def add_norm(
        p_x1: T.handle, p_x2: T.handle, p_weight: T.handle, p_norm: T.handle, p_total: T.handle
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        x1 = T.match_buffer(p_x1, shape, dtype)
        x2 = T.match_buffer(p_x2, shape, dtype)
        weight = T.match_buffer(p_weight, (hidden_size,), dtype)
        norm = T.match_buffer(p_norm, shape, dtype)
        total = T.match_buffer(p_total, shape, dtype)
        partial = T.sblock_alloc_buffer((threads,), "float32", scope="local")
        squares = T.sblock_alloc_buffer((1,), "float32", scope="local")
        for block in T.thread_binding(rows, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("zero"):
                    t = T.axis.spatial(threads, thread)
                    partial[t] = T.float32(0)
                for i in T.unroll(per_thread):
                    with T.sblock("add"):
                        row = T.axis.spatial(rows, block)
                        h = T.axis.spatial(hidden_size, i * threads + thread)
                        T.where(i * threads + thread < hidden_size)
                        total[(*at(row), h)] = x1[(*at(row), h)] + x2[(*at(row), h)]
                with T.sblock("sum_over_threads"):
                    t = T.axis.reduce(threads, thread)
                    with T.init():
                        squares[0] = T.float32(0)
                    squares[0] += partial[t]
                for i in T.unroll(per_thread):
                    with T.sblock("normalise"):
                        row = T.axis.spatial(rows, block)
                        h = T.axis.spatial(hidden_size, i * threads + thread)
                        T.where(i * threads + thread < hidden_size)
                        norm[(*at(row), h)] = T.cast(
                            T.rsqrt(squares[0]) * T.float32(weight[h]), dtype
                        )

    return add_norm
