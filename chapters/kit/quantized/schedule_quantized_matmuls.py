"""Schedules the products that unpack their own matrix, on a CPU.

Where the processor adds up products of bytes, x is rounded to 8 bits in groups (`int8_product`). Elsewhere, or if
`exact` asks for it, the codes become floats in registers and x stays as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import tvm
from tvm import tirx
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from chapters.kit.cpu.matmul_tile import largest_divisor
from chapters.kit.cpu.nt_matmul import NAME as PRODUCT
from chapters.kit.cpu.nt_matmul import is_nt_matmul, product_of
from chapters.kit.cpu.parallel_rows import find_row_loops, parallelize
from chapters.kit.cpu.vector_registers import vector_registers
from chapters.kit.ir.row_index import is_one
from chapters.kit.ir.tensor_ir import count, innermost_blocks, substitute, with_fields
from chapters.kit.quantized.dequantize import match_dequantize
from chapters.kit.quantized.dot_products import DotProducts, dot_products
from chapters.kit.quantized.int8_product import Multiply, Rows, int8_product
from chapters.kit.quantized.weight_blocks import PackedLayout
from chapters.kit.schedules.merge_elementwise import inline_epilogue
from chapters.kit.schedules.tile_products import pad_to_tiles
from chapters.kit.schedules.unscheduled import map_unscheduled


@tvm.transform.module_pass(opt_level=0, name="ScheduleQuantizedMatmuls")
class ScheduleQuantizedMatmuls:
    """Schedules each PrimFunc that unpacks a matrix and multiplies by it, with the epilogue of the product.

    multiply: fills the sums of a tile of codes and integers.
    """

    def __init__(self, target: Target, multiply: Multiply, exact: bool = False):
        self.target, self.multiply, self.exact = target, multiply, exact

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return map_unscheduled(
            mod, lambda func: schedule(func, self.target, self.multiply, self.exact)
        )


class QuantizedMatmul(NamedTuple):
    """The parts of a kernel: a matrix (n, k) of codes in `form`, x, and the sums."""

    form: PackedLayout
    codes: tirx.Buffer
    scales: tirx.Buffer
    weights: tirx.Buffer
    x: tirx.Buffer
    sums: tirx.Buffer


def match_quantized_matmul(func: tirx.PrimFunc) -> QuantizedMatmul | None:
    """The parts of `func` if its first two blocks unpack a matrix and multiply by it; None for another kernel.

    Only the product reads the floats.
    """
    try:
        product = product_of(func)
    except ValueError:
        return None
    blocks = innermost_blocks(func.body)
    if len(blocks) < 2:
        return None
    (loops, first), (_, second) = blocks[:2]
    if second.block.name_hint != PRODUCT or not loops or not is_nt_matmul(product):
        return None
    weights, x, sums = product.params
    sources = list(dict.fromkeys(region.source for region in first.block.reads))
    root = with_fields(func.body.block, body=loops[0], alloc_buffers=[])
    uses = count(loops[0], weights) + count(product.body.block.body, weights)
    if count(func.body.block.body, weights) != uses or weights in func.params:
        return None
    for codes, scales in (sources, sources[::-1]) if len(sources) == 2 else ():
        form = match_dequantize(
            tirx.PrimFunc([codes, scales, weights], SBlockRealize([], True, root))
        )
        if form:
            return QuantizedMatmul(form, codes, scales, weights, x, sums)
    return None


def merge_epilogue(func: tirx.PrimFunc, parts: QuantizedMatmul) -> Schedule | None:
    """A schedule of `func` with at most one block after the product; None if a result reads sums of other results."""
    sch = Schedule(func)
    epilogue = sch.get_child_blocks(sch.get_sblock("root"))[2:]
    return sch if inline_epilogue(sch, parts.sums, epilogue) else None


def schedule(func: tirx.PrimFunc, target: Target, multiply: Multiply, exact: bool) -> tirx.PrimFunc:
    """`func` with a schedule and marked as scheduled, if it is a quantized matmul; or `func` itself."""
    parts = match_quantized_matmul(func)
    sch = parts and merge_epilogue(func, parts)
    if sch is None:
        return func
    unpack, _product, *epilogue = sch.get_child_blocks(sch.get_sblock("root"))
    dots = None if exact else dot_products(target)
    floats = all(str(one.dtype) == "float32" for one in (parts.x, parts.sums))
    if dots and floats and dots.lanes == parts.form.lanes:
        if epilogue:
            _vectorize_epilogue(sch, epilogue[-1], target)
        func = _replace_by_int8_product(sch.mod["main"], parts, dots, multiply)
    else:
        _fuse_unpack(sch, unpack, parts, target)
        func = sch.mod["main"]
    return func.with_attr("tirx.is_scheduled", True)


def _vectorize_epilogue(sch: Schedule, block: SBlockRV, target: Target) -> None:
    """Run an elementwise block in vectors, and its rows in parallel if there are many."""
    *_, column = sch.get_loops(block)
    lanes = vector_registers(target).lanes("float32")
    _, lane = sch.split(column, [None, largest_divisor(int(sch.get(column).extent), lanes)])
    rows = find_row_loops(sch, block)
    sch.vectorize(lane)
    if any(not isinstance(sch.get(row).extent, tirx.IntImm) for row in rows):
        parallelize(sch, rows)


def _replace_by_int8_product(
    func: tirx.PrimFunc, parts: QuantizedMatmul, dots: DotProducts, multiply: Multiply
) -> tirx.PrimFunc:
    """`func` with the blocks that unpack and multiply replaced by the loops of `int8_product`."""
    (n, k) = (int(extent) for extent in parts.weights.shape)
    kernel = int8_product(parts.form, n, k, list(parts.x.shape), dots, multiply)
    buffers = (parts.codes, parts.scales, parts.x, parts.sums)
    inner = substitute(kernel.body.block, dict(zip(kernel.params, buffers, strict=True)))
    root = func.body.block
    epilogue = list(root.body.seq)[2:]
    kept = [one for one in root.alloc_buffers if not one.same_as(parts.weights)]
    root = with_fields(
        root,
        body=tirx.SeqStmt([inner.body, *epilogue]) if epilogue else inner.body,
        alloc_buffers=[*kept, *inner.alloc_buffers],
    )
    return func.with_body(SBlockRealize([], True, root))


def _fuse_unpack(sch: Schedule, unpack: SBlockRV, parts: QuantizedMatmul, target: Target) -> None:
    """Unpack in registers: a vector of codes becomes floats, which are multiplied by one element of each row of x."""
    product = sch.get_consumers(unpack)[0]
    rows, form = Rows(parts.x.shape), parts.form
    registers = vector_registers(target)
    vectors = max(1, form.lanes // registers.lanes("float32"))  # registers for a vector of sums
    # registers of sums; the rest holds codes, scales and weights
    at_once = max(1, registers.count // 2 // vectors)
    few = rows.known and rows.count <= at_once
    tile_rows = rows.count if few else at_once
    if not few:
        axis = max(at for at, n in enumerate(rows.shape) if not is_one(n))
        pad_to_tiles(sch, product, {axis: tile_rows})
    sch.compute_inline(unpack)
    *around, j, k = sch.get_loops(product)
    row = sch.fuse(*around) if around else sch.add_unit_loop(j)
    tile, row = sch.split(row, [None, tile_rows])
    panels = largest_divisor(
        int(parts.weights.shape[0]) // form.lanes, max(1, at_once // tile_rows)
    )
    part, panel, lane = sch.split(j, [None, panels, form.lanes])
    if form.bits == 4:
        group, half, word, byte = sch.split(k, [None, 2, form.words, 4])
        steps = [word, half, byte]
        sch.unroll(half)
    else:
        group, word, byte = sch.split(k, [None, form.words, 4])
        steps = [word, byte]
    sch.reorder(part, tile, group, *steps, panel, row, lane)
    (epilogue,) = sch.get_consumers(product) or [sch.cache_write(product, 0, "local")]
    sch.set_scope(product, 0, "local")
    sch.reverse_compute_at(epilogue, tile)
    *_, column = sch.get_loops(epilogue)
    _, result = sch.split(column, [None, form.lanes])
    sch.vectorize(result)
    for loop in (byte, panel, row):
        sch.unroll(loop)
    sch.vectorize(lane)
    sch.parallel(part)
    sch.decompose_reduction(product, group)
