"""Kernels that measure a CPU's upper bounds: reading a matrix once, and multiplying and adding in registers.

A matmul cannot be faster than either. `multiply_tile` is between a bound and a matmul: it repeats the tile of which a
matmul consists, on operands that never leave the first-level cache. Compile these kernels for the same target as the
kernels that they bound, and measure them in the same rounds, because clocks and bandwidth change from minute to minute.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from tvm.target import Target

from chapters.kit.cpu.matmul_tile import SIDE_BY_SIDE
from chapters.kit.cpu.vector_registers import vector_registers

MULTIPLY_ADDS = 1 << 26  # of float32, for each thread
CHAINS = 12  # independent sums: more than the multiply-adds in flight, fewer than the registers
NEAR = 1 << 14  # bytes of operands: half of a small first-level data cache
STEPS = 8  # of a tile, written out one after another


def read_matrix(n: int, k: int, target: Target) -> tuple[Callable, tuple[int, int]]:
    """A kernel (w, sums) that reads w, (n, k) float32, in stored order; and the shape of `sums`.

    It adds the elements lane by lane, so that the compiler cannot remove a read. k must be a multiple of the lanes of a
    register and n of SIDE_BY_SIDE; ValueError if not.
    """
    lanes = vector_registers(target).lanes("float32")
    if k % lanes or n % SIDE_BY_SIDE:
        raise ValueError(f"({n}, {k}) does not divide into {SIDE_BY_SIDE} rows and {lanes} lanes.")
    w = te.placeholder((n, k), "float32", name="w")
    chunk = te.reduce_axis((0, k // lanes), name="chunk")
    sums = te.compute(
        (n, lanes), lambda i, lane: te.sum(w[i, chunk * lanes + lane], axis=chunk), name="sums"
    )
    sch = Schedule(te.create_prim_func([w, sums]))
    block = sch.get_sblock("sums")
    row, lane, chunk_loop = sch.get_loops(block)
    group, member = sch.split(row, [None, SIDE_BY_SIDE])
    sch.reorder(group, chunk_loop, member, lane)
    sch.vectorize(lane)
    sch.unroll(member)
    sch.parallel(group)
    sch.decompose_reduction(block, chunk_loop)
    return tvm.compile(sch.mod, target=target)["main"], (n, lanes)


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
