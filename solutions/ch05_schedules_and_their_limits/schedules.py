"""Chapter 5: schedule primitives one by one, what they cannot do, and fast schedules for chapter 3's kernel.

Exercises 5.1 to 5.5 use `matmul_bias` of `chapters/kit/cases/example_programs.py`: a block `matmul`, which sums into
`temp`, and a block `bias`, which stores `temp` plus C into D. 5.6 sums the rows of a matrix. A function that takes a
schedule changes it in place; what the program computes must stay the same.
"""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from chapters.ch05_schedules_and_their_limits.given import (
    has_schedule,
    pack_rows,
    pad_rows,
    split_steps,
    vectorize_copies,
)
from chapters.kit.cpu.matmul_tile import (
    has_few_rows,
    lanes_of,
    largest_divisor,
    matmul_tile,
    rows_at_a_time,
)
from chapters.kit.cpu.nt_matmul import weight_shape

# --- primitives one by one ------------------------------------------------------------------------


def tile(sch: Schedule, rows: int, columns: int) -> list[LoopRV]:
    """Cut the product into tiles of `rows` by `columns` elements of the result, and return the five loops.

    sch: a schedule of `matmul_bias`, with the loops i, j and p of `matmul` over rows, columns and steps. They become,
    from outside to inside: row tiles, column tiles, steps, rows of a tile, columns of a tile. The sizes of the product
    need not be multiples of the tile's.
    """
    # BEGIN exercise 5.1 (about 5 lines): two splits and a reorder
    i, j, step = sch.get_loops("matmul")
    row_tile, row = sch.split(i, [None, rows])
    column_tile, column = sch.split(j, [None, columns])
    sch.reorder(row_tile, column_tile, step, row, column)
    return [row_tile, column_tile, step, row, column]
    # END exercise 5.1


def use_the_machine(sch: Schedule) -> LoopRV:
    """Divide the tiles among the processor's cores and the columns of a tile among vector lanes.

    sch: as `tile` leaves it. The loops over row tiles and column tiles become one parallel loop over all tiles, which
    is returned. The rows of a tile are unrolled, and its columns vectorized.
    """
    row_tile, column_tile, _step, row, column = sch.get_loops("matmul")
    tiles = sch.fuse(row_tile, column_tile)
    sch.parallel(tiles)
    sch.unroll(row)
    sch.vectorize(column)
    return tiles


def bias_at_the_tile(sch: Schedule) -> None:
    """Move `bias` into the loop over tiles, so that it adds to a tile's sums while these are in the cache.

    sch: as `use_the_machine` leaves it. `bias` then runs once for each element of a tile, after the tile's last step.
    """
    tiles = sch.get_loops("matmul")[0]
    sch.reverse_compute_at("bias", tiles)


def scheduled(func: tirx.PrimFunc, rows: int, columns: int) -> Schedule:
    """Return a new schedule of `func`: the three functions above, and the init taken out of the loop over steps.

    func: any program that `matmul_bias` makes. rows, columns: the size of a tile. The init runs inside the loop over
    tiles, right before the loop over steps.
    """
    # BEGIN exercise 5.2 (about 7 lines): the order of the primitives matters
    sch = Schedule(func)
    tile(sch, rows, columns)
    use_the_machine(sch)
    bias_at_the_tile(sch)
    step = sch.get_loops("matmul")[1]
    sch.decompose_reduction("matmul", step)
    return sch
    # END exercise 5.2


# --- three attempts to bring the bias into the product --------------------------------------------

REASONS = (
    "the block to be inlined has two producers, not a single one",
    "the block to be inlined has an init",
    "the block to be inlined writes an output of the function",
    "its producer is a reduction block, not a complete block",
    "its producer has a second consumer",
)


def reasons() -> dict[str, str]:
    """Return the reason for which TVM refuses each of the three attempts: {a key of given.ATTEMPTS: one of REASONS}."""
    # BEGIN exercise 5.3 (about 5 lines): run the attempts, read the errors, choose
    return {
        "inline the product": REASONS[1],
        "inline the bias": REASONS[3],
        "decompose, then inline": REASONS[0],
    }
    # END exercise 5.3


def forced_error(c: np.ndarray, k: int) -> np.ndarray:
    """Return what `given.forced` gives minus what it should give, for a bias `c` of any shape and sums of `k` steps."""
    # BEGIN exercise 5.4 (1 line): how often does it add the bias, and how often should it?
    return (k - 1) * c
    # END exercise 5.4


def blind_test() -> tuple[tuple[int, int, int], list[np.ndarray]]:
    """Return inputs on which `given.forced` is right: (m, n, k) and [A, B, C].

    All sizes are 1 or more. A is int8 of shape (m, k), B is int8 of shape (n, k), C is int32 of shape (m, n) without a
    zero.
    """
    # BEGIN exercise 5.5 (about 4 lines): a test on which the wrong program is right
    m, n, k = 2, 3, 1
    random = np.random.default_rng(0)
    a, b = (random.integers(-128, 128, shape, dtype=np.int8) for shape in ((m, k), (n, k)))
    return (m, n, k), [a, b, np.full((m, n), 7, np.int32)]
    # END exercise 5.5


# --- the sums of a matrix's rows ------------------------------------------------------------------

LANES = 4  # elements of int32 in a vector register of 128 bits


def partial_sums(sch: Schedule) -> SBlockRV:
    """Give each row LANES partial sums, and return the block that makes them; `total` then adds them up.

    Partial sum l of a row adds its columns l, l + LANES, l + 2 * LANES and so on. The buffer of the partial sums has
    the shape (rows, LANES). The number of columns is a multiple of LANES.
    """
    # BEGIN exercise 5.6 (about 3 lines): split off the loop over the lanes, then rfactor
    _i, k = sch.get_loops("total")
    _group, lane = sch.split(k, [None, LANES])
    return sch.rfactor(lane, factor_axis=1)
    # END exercise 5.6


# --- NT_matmul, fast ------------------------------------------------------------------------------


def schedule_decode(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return the NT_matmul `func` scheduled for a few rows of x: it reads w once, in the order in which it is stored.

    func: (w, x, out), with w of shape (n, k) and all sizes constant; x has any rank, and as few rows as `has_few_rows`
    asks for. Raises ValueError for any other w or x.
    """
    _, k = weight_shape(func)
    lanes, members = largest_divisor(k, lanes_of(func, target)), rows_at_a_time(func, target)
    sch = Schedule(func)
    product = sch.get_sblock("NT_matmul")
    # BEGIN exercise 5.7 (about 15 lines): any primitives that reach the goal
    *rows, j, k_loop = sch.get_loops(product)
    _, lane = sch.split(k_loop, [None, lanes])
    partial = sch.rfactor(lane, factor_axis=len(rows) + 1)
    *rows, j, lane = sch.get_loops(product)  # out[…, j] = the sum of partial[…, j, lane]
    group, member = sch.split(j, [None, members])
    sch.reorder(group, *rows, lane, member)
    sch.compute_at(partial, group, preserve_unit_loops=True)
    _, partial_lane, *rows, partial_member, chunk = sch.get_loops(partial)
    sch.reorder(chunk, *rows, partial_member, partial_lane)
    for loop in (*rows, partial_member):
        sch.unroll(loop)
    sch.vectorize(partial_lane)
    sch.parallel(group)
    sch.decompose_reduction(product, lane)
    sch.decompose_reduction(partial, chunk)
    # END exercise 5.7
    return sch.mod["main"]


def schedule_prefill(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return the NT_matmul `func` scheduled for many rows of x: the sums of a tile stay in registers.

    func: (w, x, out), with w of shape (n, k), both constant; x has two dimensions or more, and its rows may be
    symbolic. x is small, so it is packed; w is large and stays as it is. Rows are padded to whole tiles. Raises
    ValueError as `matmul_tile` does.
    """
    tile = matmul_tile(func, target)
    sch = Schedule(func)
    product = sch.get_sblock("NT_matmul")
    packed, result = pad_rows(sch, product, tile)
    pack_rows(sch, product, tile)
    *around, j, k = sch.get_loops(product)
    row = around.pop(tile.row_axis)
    # BEGIN exercise 5.8 (about 12 lines): any primitives that reach the goal
    row_tile, vector, lane = sch.split(row, [None, tile.vectors, tile.lanes])
    block_n, columns, column = sch.split(j, [None, tile.block_n // tile.columns, tile.columns])
    block_k, steps, step = sch.split(k, [None, *split_steps(tile)])
    sch.reorder(block_n, *around, block_k, row_tile, columns, steps, step, column, vector, lane)
    sch.reverse_compute_at(result, block_n)
    sch.vectorize(lane)
    for loop in (vector, column, step):
        sch.unroll(loop)
    sch.parallel(block_n)
    sch.decompose_reduction(product, block_k)
    # END exercise 5.8
    vectorize_copies(sch, packed, result, tile)
    return sch.mod["main"]


def schedule_kernels(mod: IRModule, target: Target) -> IRModule:
    """Return `mod` with every NT_matmul scheduled that this chapter can schedule: for few rows as decode, else prefill.

    Scheduled functions get the attribute "tirx.is_scheduled".
    """
    mod = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and has_schedule(func):
            mod[gvar] = schedule(func, target).with_attr("tirx.is_scheduled", True)
    return mod


def schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return the NT_matmul `func` with the schedule for its number of rows. Raises ValueError as the schedules do."""
    return (schedule_decode if has_few_rows(func, target) else schedule_prefill)(func, target)
