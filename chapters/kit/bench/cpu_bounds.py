"""Kernels that measure what a CPU can do at most: read a matrix once, and multiply and add in registers.

A matmul can be no faster than either. `multiply_tile` lies between: the tile that a matmul consists of, over and over,
on operands that never leave the first-level cache. All are compiled for the same target and measured in the same rounds
as what they bound, because clocks and shared memory bandwidth change from minute to minute.
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
# independent ones: more than a processor can have under way, fewer than it has registers
CHAINS = 12
NEAR = 1 << 14  # bytes of operands: half of a small first-level data cache
STEPS = 8  # of a tile, written out one after another


def read_matrix(n: int, k: int, target: Target) -> tuple[Callable, tuple[int, int]]:
    """A kernel (w, sums) that reads w, (n, k) float32, in stored order; and the shape of `sums`.

    It adds what it reads, lane by lane, so that no read can be left out. k is a multiple of the lanes of a register
    and n of 4; ValueError if not.
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
    """A kernel (w, x, sums) that adds up one tile of w times x transposed, over and over; and the shapes of the three.

    The tile has `vectors` registers of rows of x by `columns` rows of w. Both operands lie in the first-level cache and
    the sums in registers, so nothing but the tile's own instructions takes time: a matmul made of such tiles can be no
    faster, and what it lacks of `multiply_add` is the price of loading operands. It multiplies and adds as often as
    `multiply_add` does, to one part in a hundred.
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
