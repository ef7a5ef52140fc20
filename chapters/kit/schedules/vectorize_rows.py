"""Schedules kernels that reduce rows, such as softmax and norms, on a CPU: each row's terms are summed by vectors.

dlight's rule for them (`tvm/s_tir/dlight/cpu/reduction.py`) adds the terms one by one, and each addition waits for the
one before. Its docstring says why: rfactor refuses a block that shares its loops with others. Here rfactor comes first,
while each block still has its own loops. Then all blocks move into the loop over the rows.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Call, Expr
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target
from tvm_ffi import structural_equal

from chapters.kit.cpu.matmul_tile import largest_divisor
from chapters.kit.cpu.vector_registers import fills_vectors, vector_registers
from chapters.kit.ir.reductions import is_reduction
from chapters.kit.ir.tensor_ir import loads, mentions, nodes
from chapters.kit.schedules.merge_elementwise import count_evaluations, inline

VECTORS = 2  # of partial sums for a row: their additions do not wait for one another


def vectorize_sums(func: tirx.PrimFunc, target: Target) -> Schedule | None:
    """A schedule of `func` in which each row's terms are reduced by vectors; None if its form is another.

    Every block runs over the same leading axes, the rows. A reduction has one result, reduces the last axes, and reads
    its terms side by side; their number is a constant that vectors divide. Each partial sum adds every few terms; the
    result is the sum of those. Raises ScheduleError where TVM refuses a step.
    """
    sch = Schedule(func)
    root = sch.get_sblock("root")
    reductions = [one for one in sch.get_child_blocks(root) if is_reduction(sch.get(one))]
    rows = {_count_row_axes(sch.get(block)) for block in reductions}
    if len(rows) != 1 or not (count := rows.pop()):
        return None
    widths = [_choose_width(sch, block, target) for block in reductions]
    if None in widths:
        return None
    _inline_elementwise(sch, count)
    partial = [
        _split_sums(sch, block, width, count)
        for block, width in zip(reductions, widths, strict=True)
    ]
    *before, last = sch.get_child_blocks(root)
    if not _have_same_rows(sch, [*before, last], count):
        return None
    row = sch.fuse(*sch.get_loops(last)[:count])
    for block in reversed(before):
        sch.compute_at(block, row, preserve_unit_loops=True)
    for block in sch.get_child_blocks(row):
        if not is_reduction(sch.get(block)) and len(sch.get(block).iter_vars) > count:
            _vectorize_elements(sch, block, target)
    sch.parallel(row)
    for block, width in zip(partial, widths, strict=True):
        _, lane, *others = sch.get_loops(block)
        steps = others[count:]
        sch.reorder(*steps, lane)
        _vectorize(sch, lane, width // VECTORS if width % VECTORS == 0 else width)
        sch.decompose_reduction(block, steps[0])
    return sch


def _count_row_axes(block: SBlock) -> int:
    """How many axes the rows of a reduction have, if it reduces one tensor's last axes into one result; else 0."""
    spatial = [axis.var for axis in block.iter_vars if axis.iter_type == tirx.IterVar.DataPar]
    store, steps = block.body, block.iter_vars[len(spatial) :]
    if not isinstance(store, tirx.BufferStore) or not steps:
        return 0
    stored_at_axes = len(store.indices) == len(spatial) and all(
        map(Expr.same_as, store.indices, spatial)
    )
    read = [load for region in block.reads for load in loads(store.value, region.source)]
    last = steps[-1].var
    side_by_side = all(load.indices[-1].same_as(last) for load in read if mentions(load, last))
    reduces = all(axis.iter_type == tirx.IterVar.CommReduce for axis in steps)
    return len(spatial) if stored_at_axes and side_by_side and reduces else 0


def _choose_width(sch: Schedule, block: SBlockRV, target: Target) -> int | None:
    """How many partial sums a row gets: whole vectors of `target`, a divisor of the number of terms; else None."""
    extent, buffer = sch.get(sch.get_loops(block)[-1]).extent, sch.get(block).writes[0].source
    if not isinstance(extent, tirx.IntImm) or not fills_vectors(buffer):
        return None
    lanes = vector_registers(target).lanes(str(buffer.dtype))
    widths = (VECTORS * lanes, largest_divisor(int(extent), lanes))
    return next((width for width in widths if int(extent) % width == 0 and width > 1), None)


def _inline_elementwise(sch: Schedule, rows: int) -> None:
    """Inline the elementwise blocks that only read, add or multiply: computing them twice costs less than storing them.

    A block with one element for each row, made of a row's sum, stays: its result is used for the whole row.
    """
    for handle in reversed(sch.get_child_blocks(sch.get_sblock("root"))[:-1]):
        block = sch.get(handle)
        if is_reduction(block) or nodes(block.body, Call):
            continue
        if nodes(block.body, tirx.Let) and count_evaluations(sch, handle) > 1:
            continue
        if len(block.iter_vars) > rows or not sch.get_producers(handle):
            inline(sch, handle)


def _split_sums(sch: Schedule, block: SBlockRV, width: int, rows: int) -> SBlockRV:
    """The new block that makes `width` partial sums of each row; `block` reduces those."""
    _, lane = sch.split(sch.get_loops(block)[-1], [None, width])
    return sch.rfactor(lane, factor_axis=rows)


def _have_same_rows(sch: Schedule, blocks: list[SBlockRV], count: int) -> bool:
    """Whether the first `count` loops of all `blocks` have the same extents."""
    extents = [[sch.get(loop).extent for loop in sch.get_loops(block)[:count]] for block in blocks]
    return all(structural_equal(one, extents[-1]) for one in extents)


def _vectorize(sch: Schedule, loop: LoopRV, lanes: int) -> None:
    """Run a loop whose extent `lanes` divides by vectors of that many elements, written out one after the other."""
    vector, lane = sch.split(loop, [None, lanes])
    sch.unroll(vector)
    sch.vectorize(lane)


def _vectorize_elements(sch: Schedule, block: SBlockRV, target: Target) -> None:
    """Vectorize the last loop of an elementwise block, if TVM has vectors of what it reads and writes."""
    loop, realize = sch.get_loops(block)[-1], sch.get(block)
    buffers = [region.source for region in [*realize.reads, *realize.writes]]
    extent = sch.get(loop).extent
    if isinstance(extent, tirx.IntImm) and all(map(fills_vectors, buffers)):
        lanes = vector_registers(target).lanes(str(buffers[-1].dtype))
        if (width := largest_divisor(int(extent), lanes)) > 1:
            _, lane = sch.split(loop, [None, width])
            sch.vectorize(lane)
