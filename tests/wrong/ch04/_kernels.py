"""Builds the wrong kernels of exercise 4.3: the reference's kernel with one of its parts exchanged.

PrimFuncs are read from their source, so each part that may be exchanged is an expression that a function makes.
"""

from solutions.ch04_add_rms_norm.fuse_add_norm import *


def kernel_with(
    *,
    square=lambda held, _x1, _x2: T.float32(held) * T.float32(held),
    accumulate="float32",
    mean_of=lambda hidden_size, _threads: hidden_size,
    over_threads=True,
    guarded=True,
    swapped=False,
    scale=lambda mean, eps: T.rsqrt(mean + eps),
    weighted=lambda held, weight: T.float32(held) * T.float32(weight),
    zero=True,
    zero_at_first=False,
):
    """row_kernel with other squares, accumulator dtype, mean, reduction, guards, results, scale, weight or zeros."""

    def row_kernel(dims, hidden_size, dtype, epsilon, threads):
        per_thread = math.ceil(hidden_size / threads)
        rows = math.prod(dims, start=tirx.IntImm("int64", 1))
        shape, at = [*dims, hidden_size], lambda row: row_index(row, dims)
        mean_factor, eps = T.float32(1.0 / mean_of(hidden_size, threads)), T.float32(epsilon)
        end = hidden_size if guarded else per_thread * threads

        @T.prim_func(private=True, s_tir=True)
        def add_norm(
            p_x1: T.handle, p_x2: T.handle, p_weight: T.handle, p_norm: T.handle, p_total: T.handle
        ):
            T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
            x1 = T.match_buffer(p_x1, shape, dtype)
            x2 = T.match_buffer(p_x2, shape, dtype)
            weight = T.match_buffer(p_weight, (hidden_size,), dtype)
            norm = T.match_buffer(p_total if swapped else p_norm, shape, dtype)
            total = T.match_buffer(p_norm if swapped else p_total, shape, dtype)
            held = T.sblock_alloc_buffer((per_thread,), dtype, scope="local")
            partial = T.sblock_alloc_buffer((threads,), accumulate, scope="local")
            squares = T.sblock_alloc_buffer((1,), accumulate, scope="local")
            for block in T.thread_binding(rows, thread="blockIdx.x"):
                for thread in T.thread_binding(threads, thread="threadIdx.x"):
                    for i in T.unroll(per_thread):
                        with T.sblock("add"):
                            row = T.axis.spatial(rows, block)
                            h = T.axis.spatial(end, i * threads + thread)
                            T.where(i * threads + thread < end)
                            held[h // threads] = x1[(*at(row), h)] + x2[(*at(row), h)]
                    for i in T.unroll(per_thread):
                        with T.sblock("write_total"):
                            row = T.axis.spatial(rows, block)
                            h = T.axis.spatial(end, i * threads + thread)
                            T.where(i * threads + thread < end)
                            total[(*at(row), h)] = held[h // threads]
                    with T.sblock("start_at_zero"):
                        t = T.axis.spatial(threads, thread)
                        T.where(thread < (threads if zero else 0))
                        partial[t] = T.cast(0, accumulate)
                    for i in T.unroll(per_thread):
                        with T.sblock("sum_own_squares"):
                            row = T.axis.spatial(rows, block)
                            t = T.axis.spatial(threads, thread)
                            k = T.axis.reduce(per_thread, i)
                            T.where(i * threads + thread < end)
                            if zero_at_first:
                                with T.init():
                                    partial[t] = T.cast(0, accumulate)
                            partial[t] += T.cast(
                                square(
                                    held[k],
                                    x1[(*at(row), k * threads + t)],
                                    x2[(*at(row), k * threads + t)],
                                ),
                                accumulate,
                            )
                for thread in T.thread_binding(threads, thread="threadIdx.x"):
                    if over_threads:
                        with T.sblock("sum_over_threads"):
                            t = T.axis.reduce(threads, thread)
                            with T.init():
                                squares[0] = T.cast(0, accumulate)
                            squares[0] += partial[t]
                    else:
                        with T.sblock("own_sum_only"):
                            t = T.axis.spatial(threads, thread)
                            squares[0] = partial[t]
                for thread in T.thread_binding(threads, thread="threadIdx.x"):
                    for i in T.unroll(per_thread):
                        with T.sblock("normalise"):
                            row = T.axis.spatial(rows, block)
                            h = T.axis.spatial(end, i * threads + thread)
                            T.where(i * threads + thread < end)
                            norm[(*at(row), h)] = T.cast(
                                scale(T.float32(squares[0]) * mean_factor, eps)
                                * weighted(held[h // threads], weight[h]),
                                dtype,
                            )

        return add_norm

    return row_kernel
