"""Chapter 5: schedule primitives on a matrix product with a bias, and the three that cannot bring the two together.

The program is `chapters/toolkit/cases/matmul_bias.py`: a block `matmul` that sums into `temp`, and a block `bias` that
stores `temp` plus C into D. Every function below changes the schedule it is given, in place; none may change what is
computed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV
from tvm.script import tirx as T


def tile(sch: Schedule, rows: int, columns: int) -> list[LoopRV]:
    """Cut the product into tiles of `rows` by `columns` elements of the result.

    The loops of `matmul`, i, j and p over rows, columns and steps, become five: row tiles, column tiles, steps, rows of
    a tile, columns of a tile, in this order. All steps of a tile run before the next tile begins. Sizes need not be
    multiples of the tile's. Returns the five loops.
    """
    # BEGIN exercise 5.1 (about 5 lines): two splits and a reorder
    raise NotImplementedError("exercise 5.1")
    # END exercise 5.1


def use_the_machine(sch: Schedule) -> LoopRV:
    """Spread the tiles of a tiled schedule over the processor's cores, and a tile's columns over its vector lanes.

    Row tiles and column tiles become one loop, which runs in parallel; columns of a tile are vectorized, rows of a tile
    unrolled. Returns the loop over tiles.
    """
    # BEGIN exercise 5.2 (about 6 lines): fuse, and then a kind for three loops
    raise NotImplementedError("exercise 5.2")
    # END exercise 5.2


def bias_at_the_tile(sch: Schedule) -> None:
    """Add the bias to a tile as soon as its sums are complete, while they are in the cache; `sch` is as 5.2 leaves it.

    `bias` then runs inside the loop over tiles, once for each element.
    """
    # BEGIN exercise 5.3 (about 2 lines): move the consumer
    raise NotImplementedError("exercise 5.3")
    # END exercise 5.3


def scheduled(func: tirx.PrimFunc, rows: int, columns: int) -> Schedule:
    """All of it, with the init taken out of the loop over steps so that no step asks whether it is the first.

    Works for every `func` that `matmul_bias` makes. Returns a new schedule of `func`.
    """
    # BEGIN exercise 5.4 (about 7 lines): the order of the primitives matters
    sch = Schedule(func)
    i, j, step = sch.get_loops("matmul")
    row_tile, row = sch.split(i, [None, rows])
    column_tile, column = sch.split(j, [None, columns])
    sch.reorder(row_tile, column_tile, step, row, column)
    tiles = sch.fuse(row_tile, column_tile)
    sch.decompose_reduction("matmul", step)
    sch.parallel(tiles)
    sch.unroll(row)
    sch.vectorize(column)
    sch.reverse_compute_at("bias", tiles)
    return sch
    # END exercise 5.4


def init_work(m: int, n: int, k: int) -> dict[str, int]:
    """What the init of the unscheduled (m, n, k) product costs when it runs.

    "stores": how often it stores a 0. "tests": how often the program asks whether a step is the first. "tests after":
    how often it asks after `decompose_reduction`.
    """
    # BEGIN exercise 5.5 (1 line): three numbers, from m, n and k
    raise NotImplementedError("exercise 5.5")
    # END exercise 5.5


# --- three attempts to bring the bias into the product --------------------------------------------


def inline_the_product(sch: Schedule) -> None:
    """Put the product where the bias block reads it."""
    sch.compute_inline("matmul")


def inline_the_bias(sch: Schedule) -> None:
    """Put the addition where the product is stored."""
    sch.reverse_compute_inline("bias")


def decompose_and_inline(sch: Schedule) -> None:
    """Take the init away first, so that nothing is in the way, and then as above."""
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])
    sch.reverse_compute_inline("bias")


ATTEMPTS: dict[str, Callable[[Schedule], None]] = {
    "inline the product": inline_the_product,
    "inline the bias": inline_the_bias,
    "decompose, then inline": decompose_and_inline,
}
REASONS = (
    "the block to be inlined has an init",
    "its producer is a reduction, and so no complete block",
    "it has two producers, and so no single one",
    "the block to be inlined writes an output of the function",
    "its producer has a second consumer",
)


def reasons() -> dict[str, str]:
    """For each of ATTEMPTS, the one of REASONS for which TVM refuses it."""
    # BEGIN exercise 5.6 (about 5 lines): run them, read the errors, choose
    raise NotImplementedError("exercise 5.6")
    # END exercise 5.6


def forced(m: int, n: int, k: int) -> tirx.PrimFunc:
    """The third attempt, done by hand: the bias is added where the sum is stored. This is not D = A @ B.T + C."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((m, k), "int8"),
        B: T.Buffer((n, k), "int8"),
        C: T.Buffer((m, n), "int32"),
        D: T.Buffer((m, n), "int32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for i, j in T.grid(m, n):
            with T.sblock("matmul_init"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = T.int32(0)
        for i, j, p in T.grid(m, n, k):
            with T.sblock("matmul_update"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, p])
                D[vi, vj] = (
                    D[vi, vj] + T.cast(A[vi, vk], "int32") * T.cast(B[vj, vk], "int32")
                ) + C[vi, vj]

    return main.with_attr("global_symbol", "main")


def forced_error(c: np.ndarray, k: int) -> np.ndarray:
    """What `forced` gives minus what it should give, for a bias `c` and a reduction of `k` steps."""
    # BEGIN exercise 5.7 (1 line): how many times is the bias in it, and how many times should it be?
    raise NotImplementedError("exercise 5.7")
    # END exercise 5.7


def blind_test() -> tuple[tuple[int, int, int], list[np.ndarray]]:
    """A test that `forced` passes: sizes (m, n, k) and the arrays A, B, C, with no zero in C."""
    # BEGIN exercise 5.8 (about 4 lines): a test on which the wrong program is right
    raise NotImplementedError("exercise 5.8")
    # END exercise 5.8
