"""Given in chapter 5: three attempts that TVM refuses, and the copies around 5.8's tiles."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.script import tirx as T

from chapters.kit.cpu.matmul_tile import Tile, largest_divisor
from chapters.kit.cpu.nt_matmul import OTHER_FORM, has_other_form, is_nt_matmul, position_of_x
from chapters.kit.ir.tensor_ir import innermost_blocks

# --- three attempts to bring the bias into the product --------------------------------------------


def inline_the_product(sch: Schedule) -> None:
    """Replace the read of `temp` in `bias` by the product."""
    sch.compute_inline("matmul")


def inline_the_bias(sch: Schedule) -> None:
    """Add the bias where `matmul` stores its result."""
    sch.reverse_compute_inline("bias")


def decompose_and_inline(sch: Schedule) -> None:
    """Take the init out of `matmul` first, then add the bias where the rest stores its result."""
    sch.decompose_reduction("matmul", sch.get_loops("matmul")[2])
    sch.reverse_compute_inline("bias")


ATTEMPTS: dict[str, Callable[[Schedule], None]] = {
    "inline the product": inline_the_product,
    "inline the bias": inline_the_bias,
    "decompose, then inline": decompose_and_inline,
}


def forced(m: int, n: int, k: int) -> tirx.PrimFunc:
    """Return the third attempt, written by hand. It does not compute A @ B.T + C: each step of a sum adds the bias."""

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


# --- around the tiles of exercise 5.8 ------------------------------------------------------------

LOADED = 16  # vectors of x, at most, that prefill loads in its unrolled steps
UNROLLED = 8  # unrolled steps, at most


def pad_rows(sch: Schedule, product: SBlockRV, tile: Tile) -> tuple[SBlockRV, SBlockRV]:
    """Pad the rows of the product to whole tiles, and return the blocks (that copies x in, that copies the result out).

    `pad_einsum` makes these copies only if the rows are not a multiple of the tile. Otherwise they are made here,
    because a packed x and a tiled result need copies too. If another block, such as a bias, reads the result, then that
    block is the copy out.
    """
    padding = [1] * len(sch.get_loops(product))
    padding[tile.row_axis] = tile.rows
    epilogue = sch.get_consumers(product)
    sch.pad_einsum(product, padding)
    x = position_of_x(sch.get(product))
    (packed,) = sch.get_producers(product) or [sch.cache_read(product, x, "global", [product])]
    (result,) = sch.get_consumers(product) or [sch.cache_write(product, 0, "global")]
    if epilogue and sch.get(result) != sch.get(epilogue[0]):
        sch.compute_inline(result)
        (result,) = epilogue
    return packed, result


def pack_rows(sch: Schedule, product: SBlockRV, tile: Tile) -> None:
    """Lay out the copies of x and of the result so that the rows of a tile are the innermost dimension."""

    def of_x(*index: tirx.Var) -> list[Expr]:
        *around, k = index
        row = around.pop(tile.row_axis)
        return [*around, row // tile.rows, k // tile.block_k, k % tile.block_k, row % tile.rows]

    def of_result(*index: tirx.Var) -> list[Expr]:
        *around, j = index
        row = around.pop(tile.row_axis)
        return [j // tile.block_n, *around, row // tile.rows, j % tile.block_n, row % tile.rows]

    sch.transform_layout(product, ("read", position_of_x(sch.get(product))), of_x)
    sch.transform_layout(product, ("write", 0), of_result)


def split_steps(tile: Tile) -> tuple[int, int]:
    """Return (iterations of the loop over steps, unrolled steps per iteration); their product is `tile.block_k`."""
    unrolled = largest_divisor(tile.block_k, min(UNROLLED, LOADED // tile.vectors))
    return tile.block_k // unrolled, unrolled


def vectorize_copies(sch: Schedule, packed: SBlockRV, result: SBlockRV, tile: Tile) -> None:
    """Vectorize the copies of x, along its rows, and of the result, along its columns."""
    *around, k = sch.get_loops(packed)
    vectors, lane = sch.split(around[tile.row_axis], [None, tile.lanes])
    sch.reorder(vectors, k, lane)
    sch.vectorize(lane)
    sch.parallel(vectors)
    width = largest_divisor(tile.block_n, tile.lanes)
    if width > 1:
        _, lane = sch.split(sch.get_loops(result)[-1], [None, width])
        sch.vectorize(lane)


def has_schedule(func: tirx.PrimFunc) -> bool:
    """Return whether this chapter can schedule `func`: an unscheduled NT_matmul, alone, with a w of constant size.

    The kernel is recognized by what it computes, not by its name. A kernel with that name and nothing else in it
    that is not recognized gets a warning, because it stays many times slower.
    """
    if "tirx.is_scheduled" in (func.attrs or {}):
        return False
    if len(innermost_blocks(func.body)) == 1 and has_other_form(func):
        warnings.warn(f"This kernel stays without a schedule: it is {OTHER_FORM}.", stacklevel=2)
    return is_nt_matmul(func)
