"""The fused add and RMSNorm on a CPU, for those without a GPU: one pass over memory, vectorised, parallel over rows.

A row is short enough for the first-level cache: the sum is read back from there, not from memory. So memory sees two
reads and two writes an element, which is the bound.
"""

import math

import tvm
from tvm import tirx
from tvm.script import tirx as T

from chapters.toolkit.cpu.bfloat16_pairs import even, joined, loaded, odd, stored
from chapters.toolkit.cpu.nontemporal_store import LINE_BYTES, llvm_text, store_line, stores_done
from chapters.toolkit.ir.row_index import row_index

LANES = 16  # float32 elements a vector: 64 bytes; LLVM splits it where the processor's are narrower
UNROLLED = 2  # vectors of partial sums, so that one addition need not wait for the last
ALONE_BYTES = 1 << 17  # arguments smaller than this are done before other threads have woken up
STREAM_BYTES = 1 << 26  # results larger than this will have left the cache before they are read


def cpu_kernel(
    dims: list[tvm.ir.Expr], hidden_size: int, dtype: str, epsilon: float
) -> tirx.PrimFunc:
    """A PrimFunc for LLVM: x1, x2 (*dims, hidden_size), weight (hidden_size,), norm and total like x1, all of `dtype`.

    total = x1 + x2, rounded to dtype; norm = total / sqrt(mean(total ** 2) + epsilon) * weight, the squares summed in
    float32. Chosen when it runs, by the number of rows: one thread, all threads, or all threads and stores that bypass
    the cache (only where a row is a whole number of cache lines).
    """
    item = 4 if dtype == "float32" else 2
    step = LANES * UNROLLED
    whole = hidden_size // step * step
    rows = math.prod(dims, start=tirx.IntImm("int64", 1))
    shape, at = [*dims, hidden_size], lambda row: row_index(row, dims)
    mean_factor, eps = T.float32(1.0 / hidden_size), T.float32(epsilon)
    alone_rows = ALONE_BYTES // (4 * hidden_size * item)
    line = LINE_BYTES // item
    can_stream = hidden_size % line == 0
    most_rows = STREAM_BYTES // (2 * hidden_size * item) if can_stream else 2**62
    stored_as = "float32" if dtype == "bfloat16" else dtype  # a line of pairs is a line of bits
    paired = dtype == "bfloat16" and hidden_size % (2 * LANES) == 0

    @T.inline
    def scale_of(partial, scale):
        # halves added to halves: five additions that wait for one another, not one a lane
        for v in T.vectorized(step // 2):
            partial[v] += partial[step // 2 + v]
        for v in T.vectorized(step // 4):
            partial[v] += partial[step // 4 + v]
        for v in T.vectorized(step // 8):
            partial[v] += partial[step // 8 + v]
        for v in T.vectorized(step // 16):
            partial[v] += partial[step // 16 + v]
        scale[0] = T.rsqrt((partial[0] + partial[1]) * mean_factor + eps)

    @T.inline
    def one_row(x1, x2, weight, norm, total, row):
        partial = T.alloc_buffer((step,), "float32")
        scale = T.alloc_buffer((1,), "float32")
        for lane in T.vectorized(step):
            partial[lane] = T.float32(0)
        for chunk in T.serial(hidden_size // step):
            for u in T.unroll(UNROLLED):
                for v in T.vectorized(LANES):
                    total[(*at(row), chunk * step + u * LANES + v)] = T.cast(
                        T.float32(x1[(*at(row), chunk * step + u * LANES + v)])
                        + T.float32(x2[(*at(row), chunk * step + u * LANES + v)]),
                        dtype,
                    )
                for v in T.vectorized(LANES):
                    partial[u * LANES + v] += T.float32(
                        total[(*at(row), chunk * step + u * LANES + v)]
                    ) * T.float32(total[(*at(row), chunk * step + u * LANES + v)])
        for h in T.serial(hidden_size % step):
            total[(*at(row), whole + h)] = T.cast(
                T.float32(x1[(*at(row), whole + h)]) + T.float32(x2[(*at(row), whole + h)]), dtype
            )
            partial[h] += T.float32(total[(*at(row), whole + h)]) * T.float32(
                total[(*at(row), whole + h)]
            )
        scale_of(partial, scale)
        for chunk in T.serial(hidden_size // LANES):
            for v in T.vectorized(LANES):
                norm[(*at(row), chunk * LANES + v)] = T.cast(
                    T.float32(total[(*at(row), chunk * LANES + v)])
                    * scale[0]
                    * T.float32(weight[chunk * LANES + v]),
                    dtype,
                )
        for h in T.serial(hidden_size % LANES):
            norm[(*at(row), hidden_size // LANES * LANES + h)] = T.cast(
                T.float32(total[(*at(row), hidden_size // LANES * LANES + h)])
                * scale[0]
                * T.float32(weight[hidden_size // LANES * LANES + h]),
                dtype,
            )

    def pairs_at(buffer, place, chunk):
        return loaded(buffer[(*place, T.ramp(chunk * line, 1, line))], LANES)

    def sum_of_pairs(a, b):
        return joined(even(a, LANES) + even(b, LANES), odd(a, LANES) + odd(b, LANES), LANES)

    def norm_of_pairs(total, scale, factors):
        by = T.broadcast(scale, LANES)
        first = even(total, LANES) * by * even(factors, LANES)
        return joined(first, odd(total, LANES) * by * odd(factors, LANES), LANES)

    @T.inline
    def add_squares(partial, total):
        partial[T.ramp(0, 1, LANES)] += even(total, LANES) * even(total, LANES)
        partial[T.ramp(LANES, 1, LANES)] += odd(total, LANES) * odd(total, LANES)

    @T.inline
    def one_row_of_pairs(x1, x2, weight, norm, total, row):
        partial = T.alloc_buffer((step,), "float32")
        scale = T.alloc_buffer((1,), "float32")
        for lane in T.vectorized(step):
            partial[lane] = T.float32(0)
        for chunk in T.serial(hidden_size // line):
            total[(*at(row), T.ramp(chunk * line, 1, line))] = stored(
                sum_of_pairs(pairs_at(x1, at(row), chunk), pairs_at(x2, at(row), chunk)), LANES
            )
            add_squares(partial, pairs_at(total, at(row), chunk))
        scale_of(partial, scale)
        for chunk in T.serial(hidden_size // line):
            norm[(*at(row), T.ramp(chunk * line, 1, line))] = stored(
                norm_of_pairs(
                    pairs_at(total, at(row), chunk), scale[0], pairs_at(weight, (), chunk)
                ),
                LANES,
            )

    @T.inline
    def one_row_streamed(x1, x2, weight, norm, total, row):
        # the stored sum is not in the cache, so the row is kept beside it
        held = T.alloc_buffer((hidden_size,), dtype)
        out = T.alloc_buffer((line,), dtype)
        partial = T.alloc_buffer((step,), "float32")
        scale = T.alloc_buffer((1,), "float32")
        for lane in T.vectorized(step):
            partial[lane] = T.float32(0)
        for chunk in T.serial(hidden_size // line):
            for v in T.vectorized(line):
                held[chunk * line + v] = T.cast(
                    T.float32(x1[(*at(row), chunk * line + v)])
                    + T.float32(x2[(*at(row), chunk * line + v)]),
                    dtype,
                )
            T.evaluate(
                store_line(
                    T.address_of(total[(*at(row), chunk * line)]),
                    held[T.ramp(chunk * line, 1, line)],
                    dtype,
                )
            )
            for v in T.vectorized(line):
                partial[v] += T.float32(held[chunk * line + v]) * T.float32(held[chunk * line + v])
        scale_of(partial, scale)
        for chunk in T.serial(hidden_size // line):
            for v in T.vectorized(line):
                out[v] = T.cast(
                    T.float32(held[chunk * line + v])
                    * scale[0]
                    * T.float32(weight[chunk * line + v]),
                    dtype,
                )
            T.evaluate(
                store_line(
                    T.address_of(norm[(*at(row), chunk * line)]), out[T.ramp(0, 1, line)], dtype
                )
            )
        T.evaluate(stores_done())

    @T.inline
    def one_row_of_pairs_streamed(x1, x2, weight, norm, total, row):
        held = T.alloc_buffer((hidden_size // 2,), "uint32")
        partial = T.alloc_buffer((step,), "float32")
        scale = T.alloc_buffer((1,), "float32")
        for lane in T.vectorized(step):
            partial[lane] = T.float32(0)
        for chunk in T.serial(hidden_size // line):
            held[T.ramp(chunk * LANES, 1, LANES)] = sum_of_pairs(
                pairs_at(x1, at(row), chunk), pairs_at(x2, at(row), chunk)
            )
            T.evaluate(
                store_line(
                    T.address_of(total[(*at(row), chunk * line)]),
                    tirx.reinterpret(f"float32x{LANES}", held[T.ramp(chunk * LANES, 1, LANES)]),
                    "float32",
                )
            )
            add_squares(partial, held[T.ramp(chunk * LANES, 1, LANES)])
        scale_of(partial, scale)
        for chunk in T.serial(hidden_size // line):
            T.evaluate(
                store_line(
                    T.address_of(norm[(*at(row), chunk * line)]),
                    tirx.reinterpret(
                        f"float32x{LANES}",
                        norm_of_pairs(
                            held[T.ramp(chunk * LANES, 1, LANES)],
                            scale[0],
                            pairs_at(weight, (), chunk),
                        ),
                    ),
                    "float32",
                )
            )
        T.evaluate(stores_done())

    row_in_cache = one_row_of_pairs if paired else one_row
    row_streamed = one_row_of_pairs_streamed if paired else one_row_streamed

    @T.prim_func(private=True)
    def add_norm(
        p_x1: T.handle, p_x2: T.handle, p_weight: T.handle, p_norm: T.handle, p_total: T.handle
    ):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        x1 = T.match_buffer(p_x1, shape, dtype)
        x2 = T.match_buffer(p_x2, shape, dtype)
        weight = T.match_buffer(p_weight, (hidden_size,), dtype)
        norm = T.match_buffer(p_norm, shape, dtype)
        total = T.match_buffer(p_total, shape, dtype)
        with T.attr(T.int32(0), "pragma_import_llvm", llvm_text(stored_as)):
            if rows <= alone_rows:
                for row in T.serial(rows):
                    row_in_cache(x1, x2, weight, norm, total, row)
            else:
                if rows <= most_rows:
                    for row in T.parallel(rows):
                        row_in_cache(x1, x2, weight, norm, total, row)
                elif can_stream:  # decided now, so that no code is made for rows it would not fit
                    for row in T.parallel(rows):
                        row_streamed(x1, x2, weight, norm, total, row)

    return add_norm
