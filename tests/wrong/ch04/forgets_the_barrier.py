"""4.3: all threads add to one shared element, without a reduction."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *

EXERCISE = "4.3"
WHAT = "threads add to one element of shared memory with nothing between them"
WHY = (
    "Each thread reads the element, adds, and writes it back. Two that do so at the same time "
    "lose one of the sums, and there is no barrier between them. A reduction axis bound to "
    "threads makes TVM write the exchange and its barriers."
)
READ = "chapters/ch04_add_rms_norm/lesson.md, “Five steps of a kernel”"


def row_kernel(dims, hidden_size, dtype, epsilon, threads):
    per_thread = math.ceil(hidden_size / threads)
    rows = math.prod(dims, start=tirx.IntImm("int64", 1))
    shape, at = [*dims, hidden_size], lambda row: row_index(row, dims)
    mean_factor, eps = T.float32(1.0 / hidden_size), T.float32(epsilon)

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
        held = T.sblock_alloc_buffer((per_thread,), dtype, scope="local")
        squares = T.sblock_alloc_buffer((1,), "float32", scope="shared")
        for block in T.thread_binding(rows, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("start_at_zero"):
                    one = T.axis.spatial(1, thread)
                    T.where(thread < 1)
                    squares[one] = T.float32(0)
                for i in T.unroll(per_thread):
                    with T.sblock("add"):
                        row = T.axis.spatial(rows, block)
                        h = T.axis.spatial(hidden_size, i * threads + thread)
                        T.where(i * threads + thread < hidden_size)
                        held[h // threads] = x1[(*at(row), h)] + x2[(*at(row), h)]
                        total[(*at(row), h)] = held[h // threads]
                        squares[0] = squares[0] + T.float32(held[h // threads]) * T.float32(
                            held[h // threads]
                        )
                for i in T.unroll(per_thread):
                    with T.sblock("normalise"):
                        row = T.axis.spatial(rows, block)
                        h = T.axis.spatial(hidden_size, i * threads + thread)
                        T.where(i * threads + thread < hidden_size)
                        norm[(*at(row), h)] = T.cast(
                            T.rsqrt(squares[0] * mean_factor + eps)
                            * T.float32(held[h // threads])
                            * T.float32(weight[h]),
                            dtype,
                        )

    return add_norm
