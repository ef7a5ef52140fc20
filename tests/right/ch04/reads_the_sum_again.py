"""4.3: reads the sum back from where it wrote it, which is right and slower. 4.5 and 4.8: other modules."""

from solutions.ch04_add_rms_norm.fuse_add_norm import *


def row_kernel(dims, hidden_size, dtype, epsilon, threads):
    per_thread = math.ceil(hidden_size / threads)
    rows = math.prod(dims, start=tirx.IntImm("int64", 1))
    shape, at = [*dims, hidden_size], lambda row: row_index(row, dims)

    @T.prim_func(private=True, s_tir=True)
    def kernel(a: T.handle, b: T.handle, c: T.handle, d: T.handle, e: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        x1 = T.match_buffer(a, shape, dtype)
        x2 = T.match_buffer(b, shape, dtype)
        weight = T.match_buffer(c, (hidden_size,), dtype)
        norm = T.match_buffer(d, shape, dtype)
        total = T.match_buffer(e, shape, dtype)
        part = T.sblock_alloc_buffer((threads,), "float32", scope="local")
        squares = T.sblock_alloc_buffer((1,), "float32", scope="local")
        for block in T.thread_binding(rows, thread="blockIdx.x"):
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("zero"):
                    t = T.axis.spatial(threads, thread)
                    part[t] = T.float32(0)
                for i in range(per_thread):
                    with T.sblock("add"):
                        row = T.axis.spatial(rows, block)
                        h = T.axis.spatial(hidden_size, i * threads + thread)
                        T.where(i * threads + thread < hidden_size)
                        total[(*at(row), h)] = x1[(*at(row), h)] + x2[(*at(row), h)]
                for i in range(per_thread):
                    with T.sblock("square"):
                        row = T.axis.spatial(rows, block)
                        t = T.axis.spatial(threads, thread)
                        k = T.axis.reduce(per_thread, i)
                        T.where(i * threads + thread < hidden_size)
                        part[t] += T.float32(total[(*at(row), k * threads + t)]) * T.float32(
                            total[(*at(row), k * threads + t)]
                        )
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("meet"):
                    t = T.axis.reduce(threads, thread)
                    with T.init():
                        squares[0] = T.float32(0)
                    squares[0] += part[t]
            for thread in T.thread_binding(threads, thread="threadIdx.x"):
                for i in range(per_thread):
                    with T.sblock("scale"):
                        row = T.axis.spatial(rows, block)
                        h = T.axis.spatial(hidden_size, i * threads + thread)
                        T.where(i * threads + thread < hidden_size)
                        norm[(*at(row), h)] = T.cast(
                            T.float32(total[(*at(row), h)])
                            * T.rsqrt(
                                squares[0] * T.float32(1.0 / hidden_size) + T.float32(epsilon)
                            )
                            * T.float32(weight[h]),
                            dtype,
                        )

    return kernel


def two_norms():
    @I.ir_module
    class TwoFunctionsInOne:
        @R.function
        def main(
            a: R.Tensor((1, "s", 32), "float16"),
            b: R.Tensor((1, "s", 32), "float16"),
            weight: R.Tensor((32,), "float16"),
        ):
            with R.dataflow():
                quiet = R.multiply(R.add(a, b), R.const(0.01, "float16"))
                first = R.nn.rms_norm(R.add(quiet, quiet), weight, axes=[2], epsilon=1e-6)
                second = R.nn.rms_norm(R.add(quiet, b), weight, axes=[2], epsilon=2.0)
                R.output(first, second)
            return (first, second)

    return TwoFunctionsInOne


def breaks_the_dispatch():
    @I.ir_module
    class Symbolic:
        @R.function
        def main(
            x1: R.Tensor(("b", "s", 32), "float16"),
            x2: R.Tensor(("b", "s", 32), "float16"),
            weight: R.Tensor((32,), "float16"),
        ):
            total = R.add(x1, x2)
            norm = R.nn.rms_norm(total, weight, axes=[-1], epsilon=1e-5)
            return (norm, total)

    return Symbolic
