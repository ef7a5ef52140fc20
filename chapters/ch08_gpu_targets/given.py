"""What chapter 8 provides: two kinds of tile, the fused layer to schedule, and a part of the kernel for one row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.script import tirx as T

from chapters.kit.gpu.limits import WARP, warp_step
from chapters.runner.earlier import earlier

Staged = tuple[Schedule, LoopRV]  # with the loop over blocks of k


def start_from_bias(func: tirx.PrimFunc) -> tuple[Schedule, SBlockRV]:
    """A schedule of `func` (the kit's linear_bias) with the bias fused by chapter 6, and its only block."""
    sch = Schedule(func)
    earlier(6).fuse_reduction_epilogue(sch, "matmul", "bias")
    return sch, sch.get_sblock("matmul")


# --- how a matmul is tiled ------------------------------------------------------------------------


@dataclass(frozen=True)
class ThreadTile:
    """How a matmul is tiled: a block computes (block_m, block_n) elements of D, each thread (thread_m, thread_n).

    block_k: how many steps of the sums a block computes before it goes on along k; chapter 8 stages that many in shared
    memory at a time. vector: elements per load when a tile is copied to shared memory. thread_m divides block_m, and
    thread_n divides block_n. block_m, block_n and block_k divide m, n and k.
    """

    block_m: int
    block_n: int
    block_k: int
    thread_m: int
    thread_n: int
    vector: int = 1

    @property
    def threads(self) -> tuple[int, int]:
        """(threads along m, threads along n) of a block: threadIdx.y and threadIdx.x."""
        return self.block_m // self.thread_m, self.block_n // self.thread_n


@dataclass(frozen=True)
class WarpTile:
    """How a matmul is tiled for tensor cores: like ThreadTile, but a warp, not a thread, computes (warp_m, warp_n).

    All five are multiples of 16, except vector, the elements per load.
    """

    block_m: int = 64
    block_n: int = 64
    block_k: int = 32
    warp_m: int = 32
    warp_n: int = 32
    vector: int = 8

    @property
    def threads(self) -> tuple[int, int, int]:
        """(warps along m, warps along n, threads of a warp): threadIdx.z, threadIdx.y, threadIdx.x."""
        return self.block_m // self.warp_m, self.block_n // self.warp_n, WARP


# --- one row --------------------------------------------------------------------------------------


def lane_products(k: int, dtype: str) -> Callable:
    """A part of the kernel for one row, to call in its TVMScript: add_products(partial, A, B, column, lane).

    It adds to partial[lane] the products of vectors lane, lane + 32, lane + 64, ... of row 0 of A and of row `column`
    of B. A vector has 16 bytes; a lane has up to four vectors of each operand in flight. Raises ValueError unless k is
    a multiple of 32 vectors.
    """
    if k % warp_step(dtype) or k == 0:
        raise ValueError(
            f"k is {k}, and one step of a warp takes {warp_step(dtype)} elements of {dtype}: the rest of the sum would "
            "be left out. Use this kernel only if k is a multiple of that and not 0."
        )
    vector, steps = warp_step(dtype) // WARP, k // warp_step(dtype)
    group = math.gcd(steps, 4)  # more would need more registers, so fewer warps would run at once

    @T.inline
    def add_products(partial, A, B, column, lane):
        a = T.sblock_alloc_buffer((group, vector), dtype, scope="local")
        b = T.sblock_alloc_buffer((group, vector), dtype, scope="local")
        for g in T.serial(steps // group):
            for s in T.unroll(group):
                for v in T.vectorized(vector):
                    with T.sblock("load_b"):
                        j = T.axis.spatial(B.shape[0], column)
                        p = T.axis.spatial(k, ((g * group + s) * WARP + lane) * vector + v)
                        b[p // vector // WARP % group, p % vector] = B[j, p]
            for s in T.unroll(group):
                for v in T.vectorized(vector):
                    with T.sblock("load_a"):
                        p = T.axis.spatial(k, ((g * group + s) * WARP + lane) * vector + v)
                        a[p // vector // WARP % group, p % vector] = A[0, p]
            for s, v in T.grid(group, vector):
                with T.sblock("add_own"):
                    t = T.axis.spatial(WARP, lane)
                    q = T.axis.reduce(steps, g * group + s)
                    e = T.axis.reduce(vector, v)
                    partial[t] += T.float32(a[q % group, e]) * T.float32(b[q % group, e])

    return add_products
