"""The fused add and RMSNorm on a CPU, for those without a GPU: one pass over memory, vectorized, parallel over rows.

A row fits into the first-level cache: the sum is read back from there, not from memory. So memory sees two reads and
two writes per element, which is the least possible.

A row is computed in one of four ways. `_row_in_cache` is the plain one. `_row_streamed` stores its results around the
cache, for tensors too large to stay in it. Both have a twin for bfloat16 that computes on pairs of elements.
All four take the same steps: add, store the sum, sum the squares, scale, store the norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.script import tirx as T

from chapters.kit.cpu.cache_control import CACHE_LINE, llvm_text, store_line, stores_done
from chapters.kit.ir.parse_alone import kernel_for_rows
from chapters.kit.ir.row_index import row_index

LANES = 16  # float32 elements per vector, 64 bytes; LLVM splits it for narrower registers
UNROLLED = 2  # vectors of partial sums, so that an addition need not wait for the one before it
STEP = LANES * UNROLLED  # elements of a row that one iteration takes
PAIRED = 2 * LANES  # elements of a vector of pairs: one cache line
UPPER = 0xFFFF0000  # the bits of a pair's second element
ALONE_BYTES = 1 << 17  # up to this size one thread is done before other threads have woken up
STREAM_BYTES = 1 << 26  # results larger than this have left the cache before they are read


@dataclass(frozen=True)
class Rows:
    """The constants of a kernel: the leading dimensions, and the length, dtype and epsilon of a row."""

    dims: tuple[tvm.ir.Expr, ...]
    hidden_size: int
    dtype: str
    epsilon: float

    @property
    def count(self) -> tvm.ir.Expr:
        """How many rows there are."""
        return math.prod(self.dims, start=tirx.IntImm("int64", 1))

    @property
    def item_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def line(self) -> int:
        """Elements per cache line."""
        return CACHE_LINE // self.item_bytes

    @property
    def paired(self) -> bool:
        """Whether the row is computed on pairs of bfloat16."""
        return self.dtype == "bfloat16" and self.hidden_size % PAIRED == 0

    @property
    def can_stream(self) -> bool:
        """Whether a row is a whole number of cache lines, as stores around the cache require."""
        return self.hidden_size % self.line == 0

    def at(self, row: tvm.ir.Expr, *place: tvm.ir.Expr) -> tuple[tvm.ir.Expr, ...]:
        """The indices of the element `place` of the row numbered `row`; without a place, the leading indices."""
        return (*row_index(row, self.dims), *place)

    def sum(self, x1, x2, row, place) -> tvm.ir.Expr:
        """One element of x1 + x2, rounded to the dtype."""
        one, other = x1[self.at(row, place)], x2[self.at(row, place)]
        return T.cast(T.float32(one) + T.float32(other), self.dtype)

    def scaled(self, total, scale, factor) -> tvm.ir.Expr:
        """One element of the norm. total, factor: elements of the sum and of the weight. scale: as in `_set_scale`."""
        return T.cast(T.float32(total) * scale[0] * T.float32(factor), self.dtype)


@kernel_for_rows
def cpu_kernel(
    dims: list[tvm.ir.Expr], hidden_size: int, dtype: str, epsilon: float
) -> tirx.PrimFunc:
    """A PrimFunc for LLVM: x1, x2 (*dims, hidden_size), weight (hidden_size,), norm and total like x1, all of `dtype`.

    total = x1 + x2, rounded to dtype; norm = total / sqrt(mean(total ** 2) + epsilon) * weight, the squares summed in
    float32. By the number of rows the kernel chooses, when it runs, between one thread, all threads, and all threads
    with stores that bypass the cache (only where a row is a whole number of cache lines).
    """
    row_facts = Rows(tuple(dims), hidden_size, dtype, epsilon)
    shape, rows, can_stream = [*dims, hidden_size], row_facts.count, row_facts.can_stream
    row_bytes = hidden_size * row_facts.item_bytes
    alone_rows = ALONE_BYTES // (4 * row_bytes)
    most_rows = STREAM_BYTES // (2 * row_bytes) if can_stream else 2**62
    in_cache = _row_of_pairs_in_cache if row_facts.paired else _row_in_cache
    streamed = _row_of_pairs_streamed if row_facts.paired else _row_streamed
    stored_as = "float32" if dtype == "bfloat16" else dtype  # a line of pairs is a line of bits

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
                    in_cache(row_facts, x1, x2, weight, norm, total, row)
            else:
                if rows <= most_rows:
                    for row in T.parallel(rows):
                        in_cache(row_facts, x1, x2, weight, norm, total, row)
                elif can_stream:  # decided while the kernel is built: no code for other rows
                    for row in T.parallel(rows):
                        streamed(row_facts, x1, x2, weight, norm, total, row)

    return add_norm


# --- steps that all four ways take ------------------------------------------------------------------


@T.inline
def _start_at_zero(partial):
    for lane in T.vectorized(STEP):
        partial[lane] = T.float32(0)


@T.inline
def _set_scale(rows, partial, scale):
    """scale[0] = 1 / sqrt(mean + epsilon), where `partial` holds the sum of squares in STEP parts; overwrites them."""
    mean_factor = T.meta_var(T.float32(1.0 / rows.hidden_size))
    # add halves to halves: a chain of five additions, not of one per lane
    for v in T.vectorized(STEP // 2):
        partial[v] += partial[STEP // 2 + v]
    for v in T.vectorized(STEP // 4):
        partial[v] += partial[STEP // 4 + v]
    for v in T.vectorized(STEP // 8):
        partial[v] += partial[STEP // 8 + v]
    for v in T.vectorized(STEP // 16):
        partial[v] += partial[STEP // 16 + v]
    scale[0] = T.rsqrt((partial[0] + partial[1]) * mean_factor + T.float32(rows.epsilon))


def _square(value) -> tvm.ir.Expr:
    return T.float32(value) * T.float32(value)


# --- element by element -----------------------------------------------------------------------------


@T.inline
def _row_in_cache(rows, x1, x2, weight, norm, total, row):
    """A row whose results stay in the cache; the sum is read back from there."""
    partial = T.alloc_buffer((STEP,), "float32")
    scale = T.alloc_buffer((1,), "float32")
    whole = T.meta_var(rows.hidden_size // STEP * STEP)
    whole_vectors = T.meta_var(rows.hidden_size // LANES * LANES)
    _start_at_zero(partial)
    for chunk in T.serial(rows.hidden_size // STEP):
        for u in T.unroll(UNROLLED):
            first = T.meta_var(chunk * STEP + u * LANES)
            for v in T.vectorized(LANES):
                total[rows.at(row, first + v)] = rows.sum(x1, x2, row, first + v)
            for v in T.vectorized(LANES):
                partial[u * LANES + v] += _square(total[rows.at(row, first + v)])
    for h in T.serial(rows.hidden_size % STEP):
        total[rows.at(row, whole + h)] = rows.sum(x1, x2, row, whole + h)
        partial[h] += _square(total[rows.at(row, whole + h)])
    _set_scale(rows, partial, scale)
    for chunk in T.serial(rows.hidden_size // LANES):
        for v in T.vectorized(LANES):
            h = T.meta_var(chunk * LANES + v)
            norm[rows.at(row, h)] = rows.scaled(total[rows.at(row, h)], scale, weight[h])
    for last in T.serial(rows.hidden_size % LANES):
        h = T.meta_var(whole_vectors + last)
        norm[rows.at(row, h)] = rows.scaled(total[rows.at(row, h)], scale, weight[h])


@T.inline
def _row_streamed(rows, x1, x2, weight, norm, total, row):
    """A row whose results bypass the cache. The stored sum is not in the cache then, so `held` keeps the row."""
    held = T.alloc_buffer((rows.hidden_size,), rows.dtype)
    out = T.alloc_buffer((rows.line,), rows.dtype)
    partial = T.alloc_buffer((STEP,), "float32")
    scale = T.alloc_buffer((1,), "float32")
    line = T.meta_var(rows.line)
    _start_at_zero(partial)
    for chunk in T.serial(rows.hidden_size // line):
        for v in T.vectorized(line):
            held[chunk * line + v] = rows.sum(x1, x2, row, chunk * line + v)
        elements = T.meta_var(held[T.ramp(chunk * line, 1, line)])
        store_line(total[rows.at(row, chunk * line)], elements, rows.dtype)
        for v in T.vectorized(line):
            partial[v] += _square(held[chunk * line + v])
    _set_scale(rows, partial, scale)
    for chunk in T.serial(rows.hidden_size // line):
        for v in T.vectorized(line):
            out[v] = rows.scaled(held[chunk * line + v], scale, weight[chunk * line + v])
        store_line(norm[rows.at(row, chunk * line)], out[T.ramp(0, 1, line)], rows.dtype)
    stores_done()


# --- pairs of bfloat16 ------------------------------------------------------------------------------

# A bfloat16 is the upper half of a float32. Consider a pair in one 32-bit lane. Clear the lower half of the lane, and
# it is the second element (the one at the higher address) as a float32; shift the lane left by 16 bits, and it is the
# first. Element by element, LLVM would widen each element to its own lane and narrow it again: two more shuffles per
# element, and a core does one shuffle per cycle. This assumes a little-endian processor, as do all targets of this
# course.


def to_bits(pairs: tvm.ir.Expr) -> tvm.ir.Expr:
    """A vector of PAIRED bfloat16, or of LANES float32, as LANES uint32 with the same bits."""
    return tirx.reinterpret(f"uint32x{LANES}", pairs)


def from_bits(bits: tvm.ir.Expr) -> tvm.ir.Expr:
    """The bits of LANES pairs as a vector of PAIRED bfloat16."""
    return tirx.reinterpret(f"bfloat16x{PAIRED}", bits)


def even(bits: tvm.ir.Expr) -> tvm.ir.Expr:
    """The first element of each pair, as float32."""
    return tirx.reinterpret(f"float32x{LANES}", bits << _broadcast(16))


def odd(bits: tvm.ir.Expr) -> tvm.ir.Expr:
    """The second element of each pair, as float32."""
    return tirx.reinterpret(f"float32x{LANES}", bits & _broadcast(UPPER))


def join(first: tvm.ir.Expr, second: tvm.ir.Expr) -> tvm.ir.Expr:
    """The bits of pairs of `first` and `second` (float32), each rounded to the nearest bfloat16, ties to even."""
    return (_round(first) >> _broadcast(16)) | (_round(second) & _broadcast(UPPER))


def _round(value: tvm.ir.Expr) -> tvm.ir.Expr:
    """The bits of `value`, changed so that their upper half is the nearest bfloat16, as TVM's cast rounds."""
    bits = to_bits(value)
    return bits + (((bits >> _broadcast(16)) & _broadcast(1)) + _broadcast(0x7FFF))


def _broadcast(constant: int) -> tvm.ir.Expr:
    return tirx.Broadcast(tirx.const(constant, "uint32"), LANES)


def _load_pairs(buffer, place, chunk):
    """The cache line number `chunk` of a row of bfloat16, as LANES pairs."""
    return to_bits(buffer[(*place, T.ramp(chunk * PAIRED, 1, PAIRED))])


def _add_pairs(rows, x1, x2, row, chunk):
    a, b = (_load_pairs(x, rows.at(row), chunk) for x in (x1, x2))
    return join(even(a) + even(b), odd(a) + odd(b))


def _normalize_pairs(total, scale, weight, chunk):
    by, factors = T.broadcast(scale[0], LANES), _load_pairs(weight, (), chunk)
    first = even(total) * by * even(factors)
    return join(first, odd(total) * by * odd(factors))


def _store_pairs(place, bits):
    """Store a line of pairs around the cache."""
    return store_line(place, tirx.reinterpret(f"float32x{LANES}", bits), "float32")


@T.inline
def _add_squares(partial, total):
    partial[T.ramp(0, 1, LANES)] += even(total) * even(total)
    partial[T.ramp(LANES, 1, LANES)] += odd(total) * odd(total)


@T.inline
def _row_of_pairs_in_cache(rows, x1, x2, weight, norm, total, row):
    """`_row_in_cache` on pairs of bfloat16."""
    partial = T.alloc_buffer((STEP,), "float32")
    scale = T.alloc_buffer((1,), "float32")
    _start_at_zero(partial)
    for chunk in T.serial(rows.hidden_size // PAIRED):
        line = T.meta_var(T.ramp(chunk * PAIRED, 1, PAIRED))
        total[rows.at(row, line)] = from_bits(_add_pairs(rows, x1, x2, row, chunk))
        _add_squares(partial, _load_pairs(total, rows.at(row), chunk))
    _set_scale(rows, partial, scale)
    for chunk in T.serial(rows.hidden_size // PAIRED):
        line = T.meta_var(T.ramp(chunk * PAIRED, 1, PAIRED))
        pairs = T.meta_var(_load_pairs(total, rows.at(row), chunk))
        norm[rows.at(row, line)] = from_bits(_normalize_pairs(pairs, scale, weight, chunk))


@T.inline
def _row_of_pairs_streamed(rows, x1, x2, weight, norm, total, row):
    """`_row_streamed` on pairs of bfloat16."""
    held = T.alloc_buffer((rows.hidden_size // 2,), "uint32")
    partial = T.alloc_buffer((STEP,), "float32")
    scale = T.alloc_buffer((1,), "float32")
    _start_at_zero(partial)
    for chunk in T.serial(rows.hidden_size // PAIRED):
        line = T.meta_var(T.ramp(chunk * LANES, 1, LANES))
        held[line] = _add_pairs(rows, x1, x2, row, chunk)
        _store_pairs(total[rows.at(row, chunk * PAIRED)], held[line])
        _add_squares(partial, held[line])
    _set_scale(rows, partial, scale)
    for chunk in T.serial(rows.hidden_size // PAIRED):
        pairs = T.meta_var(held[T.ramp(chunk * LANES, 1, LANES)])
        bits = T.meta_var(_normalize_pairs(pairs, scale, weight, chunk))
        _store_pairs(norm[rows.at(row, chunk * PAIRED)], bits)
    stores_done()
