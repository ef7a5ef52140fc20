"""Tiles, on a CPU, the products that chapter 5's schedules do not take, such as those of attention.

Chapter 5 multiplies many rows of x by a matrix w of constant size, each row of which is contiguous along the sum.
Here both factors may have a batch, sizes may be symbolic, and a matrix may be multiplied as it is stored. The tile's
shape follows from the target's vector registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir import SBlock, Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from chapters.kit.cpu.matmul_tile import largest_divisor
from chapters.kit.cpu.nt_matmul import reads_only_its_own
from chapters.kit.cpu.parallel_rows import find_row_loops, parallelize
from chapters.kit.cpu.vector_registers import fills_vectors, vector_registers
from chapters.kit.cpu.vectorize_adjacent_sums import get_realize
from chapters.kit.ir.reductions import is_reduction, products
from chapters.kit.ir.tensor_ir import loads, mentions, nodes
from chapters.kit.schedules.merge_elementwise import inline
from chapters.kit.schedules.unscheduled import map_unscheduled

STEPS = 4  # of the sum that are unrolled
LATENCY = 8  # multiply-adds that a processor has in flight: a tile of fewer vectors takes as long
MOST_VECTORS = 4  # of a row of a tile

ONE_ROW = "a product of a single row, for which copying the other factor would not pay"
ONE_COLUMN = "a product in which each element of both factors is used for one column"
UNEXPECTED = "a product in a form or of a dtype that no schedule expects"


@tvm.transform.module_pass(opt_level=0, name="TileProducts")
class TileProducts:
    """Schedules each PrimFunc that no schedule has claimed and that is a product with or without an epilogue."""

    def __init__(self, target: Target):
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return map_unscheduled(mod, lambda func: tile_product(func, self.target))


@dataclass(frozen=True)
class Axes:
    """The positions of two axes of a product's block: `row` moves through one factor only, `column` through the other.

    rows, columns: the factors. extents: of the row and of the column; None for a symbolic one.
    """

    row: int
    column: int
    rows: tirx.Buffer
    columns: tirx.Buffer
    extents: tuple[int | None, int | None]


def tile_product(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """`func` with a schedule and marked as scheduled, if it is one product of the form above; or `func` itself.

    Rows and columns are padded to whole tiles. For each batch and each panel of columns, which run in parallel, the
    panel is copied so that a vector register takes the same step of neighbouring columns. It then serves all rows: the
    sums of a tile stay in registers, and the epilogue runs while they are there.
    """
    if len(found := products(func)) != 1 or sum(map(is_reduction, nodes(func.body, SBlock))) != 1:
        return func
    sch = Schedule(func)
    try:
        axes = find_axes(found[0])
        product = sch.get_sblock(found[0].name_hint)
        if not (_has_a_loop_per_axis(sch, product) and _merge_epilogue(sch, product)):
            return func
        _tile(sch, product, axes, target)
    except (ValueError, ScheduleError):
        return func
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        parallelize(sch, find_row_loops(sch, block))
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)


def find_axes(block: SBlock) -> Axes:
    """The axes of `block`, which sums products. Raises ValueError, with the reason, if no tiles fit it."""
    factors = _find_factors(block)
    spatial = [axis for axis in block.iter_vars if axis.iter_type == tirx.IterVar.DataPar]
    indices = list(block.body.indices)
    axes = [axis.var for axis in block.iter_vars[: len(indices)]]
    if not spatial or len(spatial) != len(indices) or not all(map(Expr.same_as, indices, axes)):
        raise ValueError(UNEXPECTED)
    reads = [[mentions(list(load.indices), axis.var) for axis in spatial] for load in factors]
    column = len(spatial) - 1
    if reads[0][column] == reads[1][column]:
        raise ValueError(ONE_COLUMN)
    with_columns, other = (0, 1) if reads[0][column] else (1, 0)
    rows = [at for at in range(column) if reads[other][at] and not reads[with_columns][at]]
    rows = [at for at in rows if _extent(spatial[at]) != 1]
    if not rows:
        raise ValueError(ONE_ROW)
    extents = _extent(spatial[rows[-1]]), _extent(spatial[column])
    return Axes(rows[-1], column, factors[other].source, factors[with_columns].source, extents)


def choose_tile_shape(
    extents: tuple[int | None, int | None], lanes: int, registers: int
) -> tuple[int, int]:
    """(rows, vectors) of the tile that computes `extents`, rows and columns, in the least time.

    A vector has `lanes` columns. A tile's sums, a vector of each column and one element of a row fit the `registers`.
    Each step of the sum loads rows + vectors, and multiplies rows * vectors, which count four times as much.
    """

    def cost(tile: tuple[int, int]) -> float:
        rows, vectors = tile
        each = max(rows * vectors, LATENCY) + (rows + vectors) / 4
        sizes = zip(extents, (rows, vectors * lanes), strict=True)
        tiles = [1 / size if extent is None else -(-extent // size) for extent, size in sizes]
        return each * tiles[0] * tiles[1]

    return min(
        (
            (rows, vectors)
            for vectors in range(1, MOST_VECTORS + 1)
            for rows in range(1, (registers - 1) // vectors)
            if rows * vectors + vectors < registers
        ),
        key=cost,
    )


def _find_factors(block: SBlock) -> tuple[TensorLoad, TensorLoad]:
    """The loads of the two factors, which may be cast. Raises ValueError unless their products are added up from 0."""
    store, init = block.body, block.init
    stores = all(isinstance(one, tirx.BufferStore) for one in (store, init))
    if stores and isinstance(store.value, tirx.Add) and isinstance(store.value.b, tirx.Mul):
        sums, product = store.value.a, store.value.b
        read = [
            sums,
            *(f.value if isinstance(f, tirx.Cast) else f for f in (product.a, product.b)),
        ]
        if _is_zero(init.value) and all(isinstance(one, TensorLoad) for one in read):
            total, one, other = (load.source for load in read)
            apart = total.same_as(store.buffer) and not one.same_as(other)
            if apart and all(map(fills_vectors, (total, one, other))):
                return read[1], read[2]
    raise ValueError(UNEXPECTED)


def _is_zero(value: Expr) -> bool:
    return isinstance(value, tirx.FloatImm | tirx.IntImm) and value.value == 0


def _extent(axis: tirx.IterVar) -> int | None:
    return int(axis.dom.extent) if isinstance(axis.dom.extent, tirx.IntImm) else None


def _has_a_loop_per_axis(sch: Schedule, product: SBlockRV) -> bool:
    """Whether each axis of `product` has a serial loop of its own, in the order of the axes."""
    realize, loops = get_realize(sch, product), [sch.get(loop) for loop in sch.get_loops(product)]
    in_order = list(realize.iter_values) == [loop.loop_var for loop in loops]
    return in_order and all(loop.kind == tirx.ForKind.SERIAL for loop in loops)


def _merge_epilogue(sch: Schedule, product: SBlockRV) -> bool:
    """Inline what the last block reads beside the sums; whether that block, if there is one, reads only its own sum.

    A mask or a gate may be computed before the product.
    """
    sums = sch.get(product).writes[0].source
    last = sch.get_child_blocks(sch.get_sblock("root"))[-1]
    if sch.get(last) == sch.get(product):
        return True
    while others := [one for one in sch.get_producers(last) if sch.get(one) != sch.get(product)]:
        inline(sch, others[-1])
    return reads_only_its_own(sch.get(last), sums)


def _tile(sch: Schedule, product: SBlockRV, axes: Axes, target: Target) -> None:
    """Schedule `product`, and with it the copies around it and its epilogue. Raises ScheduleError."""
    registers = vector_registers(target)
    lanes = registers.lanes(str(sch.get(product).writes[0].source.dtype))
    rows, vectors = choose_tile_shape(axes.extents, lanes, registers.count)
    columns = _read_copies_at_axes(sch, product, axes)
    pad_to_tiles(sch, product, {axes.row: rows, axes.column: vectors * lanes})
    panel = _pack(sch, product, columns, axes.column, vectors * lanes)

    loops = sch.get_loops(product)
    spatial = len(sch.get(product).body.indices)
    around, steps = loops[:spatial], loops[spatial:]
    column, row = around.pop(axes.column), around.pop(axes.row)
    tile, row = sch.split(row, [None, rows])
    part, vector, lane = sch.split(column, [None, vectors, lanes])
    extent = sch.get(steps[-1]).extent
    unrolled = largest_divisor(int(extent), STEPS) if isinstance(extent, tirx.IntImm) else 1
    *steps, step = [*steps[:-1], *sch.split(steps[-1], [None, unrolled])]
    sch.reorder(*around, part, tile, *steps, step, row, vector, lane)

    sch.compute_at(panel, part)
    while producers := sch.get_producers(panel):
        inline(sch, producers[-1])
    (epilogue,) = sch.get_consumers(product) or [sch.cache_write(product, 0, "local")]
    sch.set_scope(product, 0, "local")
    sch.reverse_compute_at(epilogue, tile)

    sch.parallel(sch.fuse(*around, part))
    for loop in (step, row, vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.decompose_reduction(product, steps[0])


def _read_copies_at_axes(sch: Schedule, product: SBlockRV, axes: Axes) -> int:
    """Let `product` read copies of factors whose indices are no axes; which of its reads has the columns."""
    for buffer in (axes.rows, axes.columns):
        at = _find_read(sch, product, buffer)
        if not _are_axes(sch.get(product), buffer):
            sch.reindex(product, ("read", at))
            if buffer.same_as(axes.columns):
                return at
    return _find_read(sch, product, axes.columns)


def _find_read(sch: Schedule, product: SBlockRV, buffer: tirx.Buffer) -> int:
    reads = [region.source for region in sch.get(product).reads]
    return next(at for at, source in enumerate(reads) if source.same_as(buffer))


def _are_axes(block: SBlock, buffer: tirx.Buffer) -> bool:
    """Whether each index of `buffer` in `block` is one of the block's axes, and no axis occurs twice."""
    axes = [axis.var for axis in block.iter_vars]
    (load,) = loads(block.body, buffer)
    found = [at for index in load.indices for at, axis in enumerate(axes) if index.same_as(axis)]
    return len(found) == len(load.indices) == len(set(found))


def pad_to_tiles(sch: Schedule, product: SBlockRV, tile: dict[int, int]) -> None:
    """Pad the axes of `product` to whole tiles; its epilogue reads the padded sums. tile: axis -> its extent."""
    epilogue = [sch.get(block) for block in sch.get_consumers(product)]
    sch.pad_einsum(product, [tile.get(axis, 1) for axis in range(len(sch.get_loops(product)))])
    for block in sch.get_consumers(product) if epilogue else []:
        if sch.get(block) not in epilogue:
            sch.compute_inline(block)  # the copy without the padding


def _pack(sch: Schedule, product: SBlockRV, read: int, column: int, width: int) -> SBlockRV:
    """Copy the factor with the columns: `width` columns side by side for each step. Returns the block that copies."""
    panel = sch.cache_read(product, read, "global", [product])
    block = sch.get(product)
    (load,) = loads(block.body, block.reads[read].source)
    axis = block.iter_vars[column].var
    (place,) = (at for at, index in enumerate(load.indices) if index.same_as(axis))
    spatial = [a.var for a in block.iter_vars if a.iter_type == tirx.IterVar.DataPar]
    is_batch = [any(index.same_as(one) for one in spatial) for index in load.indices]

    def packed(*index: tirx.Var) -> list[Expr]:
        others = [(one, batch) for one, batch in zip(index, is_batch, strict=True)]
        del others[place]
        batch = [one for one, is_one in others if is_one]
        steps = [one for one, is_one in others if not is_one]
        return [*batch, index[place] // width, *steps, index[place] % width]

    sch.transform_layout(product, ("read", read), packed)
    return panel
