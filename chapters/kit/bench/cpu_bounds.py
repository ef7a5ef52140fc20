"""Kernels that measure a CPU's upper bounds: reading a matrix once, copying, and multiplying and adding in registers.

A matmul cannot be faster than either. `multiply_tile` is between a bound and a matmul: it repeats the tile of which a
matmul consists, on operands that never leave the first-level cache. Compile these kernels for the same target as the
kernels that they bound, and measure them in the same rounds, because clocks and bandwidth change from minute to minute.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from tvm.target import Target

from chapters.kit.bench.operands import in_numpy_memory
from chapters.kit.cpu.cache_control import llvm_text, store_line, stores_done
from chapters.kit.cpu.matmul_tile import SIDE_BY_SIDE
from chapters.kit.cpu.vector_registers import vector_registers

MULTIPLY_ADDS = 1 << 26  # of float32, for each thread
CHAINS = 12  # independent sums: more than the multiply-adds in flight, fewer than the registers
NEAR = 1 << 14  # bytes of operands: half of a small first-level data cache
STEPS = 8  # of a tile, written out one after another
COLUMNS = 1 << 14  # of the matrix that `make_reader` makes
# of `two_in_two_out`
LANES = 16  # 4-byte elements: one cache line
UNROLLED = 4
CHUNK = 1024  # elements a task works on at a time


def read_matrix(
    n: int, k: int, target: Target, side_by_side: int = SIDE_BY_SIDE
) -> tuple[Callable, tuple[int, int]]:
    """A kernel (w, sums) that reads w, (n, k) float32; and the shape of `sums`.

    It adds the elements of each row, SIDE_BY_SIDE sums at a time, so that the compiler cannot remove a read. It reads
    `side_by_side` rows together, as a matmul for few rows of x does; with 1 it reads w in stored order, which is faster
    on some processors. side_by_side divides SIDE_BY_SIDE and n; k is a multiple of the lanes of the registers that hold
    a row's sums. ValueError if not.
    """
    lanes = vector_registers(target).lanes("float32")
    parts = SIDE_BY_SIDE // side_by_side
    if k % (parts * lanes) or n % side_by_side:
        raise ValueError(
            f"({n}, {k}) does not divide into {side_by_side} rows and {parts * lanes} lanes."
        )
    w = te.placeholder((n, k), "float32", name="w")
    width = parts * lanes
    chunk = te.reduce_axis((0, k // width), name="chunk")
    sums = te.compute(
        (n, width), lambda i, lane: te.sum(w[i, chunk * width + lane], axis=chunk), name="sums"
    )
    sch = Schedule(te.create_prim_func([w, sums]))
    block = sch.get_sblock("sums")
    row, lane, chunk_loop = sch.get_loops(block)
    group, member = sch.split(row, [None, side_by_side])
    part, lane = sch.split(lane, [parts, lanes])
    sch.reorder(group, chunk_loop, member, part, lane)
    sch.vectorize(lane)
    sch.unroll(member)
    sch.unroll(part)
    sch.parallel(group)
    sch.decompose_reduction(block, chunk_loop)
    return tvm.compile(sch.mod, target=target)["main"], (n, width)


def make_reader(nbytes: int, target: Target) -> Callable[[], object]:
    """A function that reads `nbytes` bytes, rounded up to whole rows of 64 kB, in stored order, and writes little."""
    rows = -(-nbytes // (4 * COLUMNS))
    kernel, shape = read_matrix(rows, COLUMNS, target, side_by_side=1)
    w, sums = in_numpy_memory(np.ones((rows, COLUMNS), "float32")), tvm.runtime.empty(shape)
    kernel(w, sums)
    if not np.all(sums.numpy().sum(axis=1) == COLUMNS):
        raise ValueError("wrong numbers: the sums of a matrix of ones")
    return lambda: kernel(w, sums)


def multiply_add(threads: int, target: Target) -> tuple[Callable, tuple[int, int], tuple[int, ...]]:
    """A kernel (operands, sums) of MULTIPLY_ADDS * threads steps a = a * x + y, and the shapes of both."""
    lanes = vector_registers(target).lanes("float32")
    steps = MULTIPLY_ADDS // (CHAINS * lanes)

    @T.prim_func(s_tir=True)
    def work(
        operands: T.Buffer((2, lanes), "float32"),
        sums: T.Buffer((threads, CHAINS, lanes), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for thread, step, chain, lane in T.grid(threads, steps, CHAINS, lanes):
            with T.sblock("step"):
                t, _s, c, i = T.axis.remap("SRSS", [thread, step, chain, lane])
                with T.init():
                    sums[t, c, i] = T.float32(0)
                sums[t, c, i] = sums[t, c, i] * operands[0, i] + operands[1, i]

    sch = Schedule(work)
    block = sch.get_sblock("step")
    thread, step, chain, lane = sch.get_loops(block)
    sch.parallel(thread)
    sch.unroll(chain)
    sch.vectorize(lane)
    sch.decompose_reduction(block, step)
    return tvm.compile(sch.mod, target=target)["main"], (2, lanes), (threads, CHAINS, lanes)


def multiply_tile(
    vectors: int, columns: int, threads: int, target: Target
) -> tuple[Callable, list[tuple[int, ...]]]:
    """A kernel (w, x, sums) that computes one tile of w times x transposed, over and over; and the shapes of the three.

    The tile has `vectors` registers of rows of x by `columns` rows of w. Both operands stay in the first-level cache,
    and the sums in registers, so only the tile's own instructions take time. A matmul made of such tiles cannot be
    faster. Compared with `multiply_add`, it shows the cost of loading operands: both do the same number of
    multiply-adds, to one part in a hundred.
    """
    lanes = vector_registers(target).lanes("float32")
    length = NEAR // (4 * (vectors * lanes + columns)) // STEPS * STEPS
    repeats = MULTIPLY_ADDS // (length * vectors * columns * lanes)
    shapes = [(columns, length), (length, vectors, lanes), (threads, columns, vectors, lanes)]

    @T.prim_func(s_tir=True)
    def work(
        w: T.Buffer(shapes[0], "float32"),
        x: T.Buffer(shapes[1], "float32"),
        sums: T.Buffer(shapes[2], "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for loops in T.grid(threads, repeats, length, columns, vectors, lanes):
            with T.sblock("tile"):
                t, _r, k, j, v, i = T.axis.remap("SRRSSS", loops)
                with T.init():
                    sums[t, j, v, i] = T.float32(0)
                sums[t, j, v, i] = sums[t, j, v, i] + x[k, v, i] * w[j, k]

    sch = Schedule(work)
    block = sch.get_sblock("tile")
    thread, repeat, step, column, vector, lane = sch.get_loops(block)
    _, unrolled = sch.split(step, [None, STEPS])
    sch.parallel(thread)
    for loop in (unrolled, column, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.decompose_reduction(block, repeat)
    return tvm.compile(sch.mod, target=target)["main"], shapes


def two_in_two_out(streaming: bool, target: Target) -> Callable:
    """A kernel (a, b, larger, smaller) of four float32 arrays of shape (any, CHUNK).

    It writes the larger and the smaller of each two elements: a plain copy would become a call of memcpy. No kernel
    that reads two tensors and writes two of the same size can be faster, if both are measured in the same minute.
    """
    copy_chunk = _streamed if streaming else _plain

    @T.prim_func
    def copy(p_a: T.handle, p_b: T.handle, p_larger: T.handle, p_smaller: T.handle):
        T.func_attr({"tirx.noalias": True, "global_symbol": "copy"})
        chunks = T.int64()
        a = T.match_buffer(p_a, (chunks, CHUNK), "float32")
        b = T.match_buffer(p_b, (chunks, CHUNK), "float32")
        larger = T.match_buffer(p_larger, (chunks, CHUNK), "float32")
        smaller = T.match_buffer(p_smaller, (chunks, CHUNK), "float32")
        with T.attr(T.int32(0), "pragma_import_llvm", llvm_text("float32")):
            for i in T.parallel(chunks):
                copy_chunk(a, b, larger, smaller, i)

    return tvm.compile(copy, target=target)["copy"]


@T.inline
def _plain(a, b, larger, smaller, i):
    for j in T.serial(CHUNK // (LANES * UNROLLED)):
        for u in T.unroll(UNROLLED):
            first = T.meta_var((j * UNROLLED + u) * LANES)
            for v in T.vectorized(LANES):
                larger[i, first + v] = T.max(a[i, first + v], b[i, first + v])
            for v in T.vectorized(LANES):
                smaller[i, first + v] = T.min(a[i, first + v], b[i, first + v])


@T.inline
def _streamed(a, b, larger, smaller, i):
    for j in T.serial(CHUNK // LANES):
        line = T.meta_var(T.ramp(j * LANES, 1, LANES))
        store_line(larger[i, j * LANES], T.max(a[i, line], b[i, line]), "float32")
        store_line(smaller[i, j * LANES], T.min(a[i, line], b[i, line]), "float32")
    stores_done()
