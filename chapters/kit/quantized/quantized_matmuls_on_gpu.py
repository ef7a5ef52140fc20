"""Schedules the products that unpack their own matrix, on a GPU: the codes become floats in registers.

A thread takes one word of codes at a time, eight codes of 4 bits or four of 8, and multiplies them by the elements of x
that belong to them. Neighbouring threads take neighbouring words, so a warp reads 128 contiguous bytes of codes, four
sectors, with any number of lanes. Prefer 16 lanes: a warp then reads two words of each of 16 rows, and needs elements
of x for two words only, one sector per load of x. With one lane it needs them for 32 words, sixteen sectors per load.
"""

from __future__ import annotations

import math

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target
from tvm_ffi import structural_map

from chapters.kit.cpu.matmul_tile import largest_divisor
from chapters.kit.gpu.limits import WARP
from chapters.kit.ir.tensor_ir import mentions
from chapters.kit.quantized.int8_product import Rows
from chapters.kit.quantized.schedule_quantized_matmuls import (
    QuantizedMatmul,
    match_quantized_matmul,
    merge_epilogue,
)
from chapters.kit.schedules.apply_gpu_fallback import schedule_any_on_gpu
from chapters.kit.schedules.matmul_on_tensor_cores import MatmulOnTensorCores
from chapters.kit.schedules.unscheduled import map_unscheduled
from chapters.kit.schedules.whole_warps import WholeWarps

FEW = 8  # rows of x, for each of which a thread keeps a sum in a register
THREADS = 256  # per block, at most: every GPU with WebGPU has as many
BYTES = 4  # of a word


@tvm.transform.module_pass(opt_level=0, name="ScheduleQuantizedMatmulsOnGPU")
class ScheduleQuantizedMatmulsOnGPU:
    """Schedules each PrimFunc that unpacks a matrix and multiplies by it, with the epilogue of the product.

    With up to FEW rows of x, each code is read once for all rows. With more rows, or a number that only the call knows,
    dlight's rule for matrix products unpacks one tile of the matrix at a time into shared memory. No kernel stores the
    floats of the matrix in global memory.
    """

    def __init__(self, target: Target):
        self.target = target

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return map_unscheduled(mod, lambda func: schedule(func, self.target))


def schedule(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """`func` with a schedule and marked as scheduled, if it is a quantized matmul; or `func` itself."""
    parts = match_quantized_matmul(func)
    if parts is None:
        return func
    rows, sch = Rows(parts.x.shape), merge_epilogue(func, parts)
    if sch is None:
        scheduled = schedule_any_on_gpu(func)
    elif rows.known and rows.count <= FEW:
        unpack, product = sch.get_child_blocks(sch.get_sblock("root"))[:2]
        sch.compute_inline(unpack)
        _share_sums(sch, product, parts)
        scheduled = sch.mod["main"]
    else:
        scheduled = schedule_many_rows(sch.mod["main"], target)
    body = _unroll_vectors(scheduled.body, parts.codes)
    return scheduled.with_body(body).with_attr("tirx.is_scheduled", True)


def schedule_many_rows(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """`func` with dlight's schedule for a matrix product, or the fallback's; both unpack where the floats are read.

    Its rule for one row is not asked: it stops with an AssertionError if the form has minima.
    """
    found = WholeWarps(MatmulOnTensorCores()).apply(func, target, False)
    return found.mod["main"] if found else schedule_any_on_gpu(func)


def _unroll_vectors(stmt: tirx.Stmt, codes: tirx.Buffer) -> tirx.Stmt:
    """`stmt` with the loops unrolled that read `codes` in vectors: neighbouring steps lie in one word, not in two."""

    def one_by_one(loop: tirx.For) -> tirx.For:
        if int(loop.kind) != tirx.ForKind.VECTORIZED or not mentions(loop.body, codes):
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body)

    return structural_map(stmt, (tirx.For, one_by_one))


def _share_sums(sch: Schedule, product: SBlockRV, parts: QuantizedMatmul) -> None:
    """Let several threads share each sum: each adds up the products of its words, and then they add up their sums."""
    partial, sharing = _split_sums(sch, product, parts)
    block, panel, lane, thread, step, half, byte, row = sch.get_loops(partial)
    sch.bind(block, "blockIdx.x")
    # the codes of neighbouring lanes lie side by side, and those of one lane if there is only one
    inside = [lane, thread, panel] if parts.form.lanes > 1 else [thread, panel]
    for axis, loop in zip("xyz", inside, strict=False):
        sch.bind(loop, f"threadIdx.{axis}")
    _add_thread_sums(sch, product, lane, sharing, f"threadIdx.{'xyz'[inside.index(thread)]}")
    sch.set_scope(partial, 0, "local")
    *_, elements = _load_once(sch, partial, parts.x, half)
    sch.vectorize(elements)
    for buffer in (parts.codes, parts.scales):
        for loop in _load_once(sch, partial, buffer, step):
            sch.unroll(loop)
    for loop in (half, byte, row):
        sch.unroll(loop)
    sch.decompose_reduction(partial, step)


def _split_sums(sch: Schedule, product: SBlockRV, parts: QuantizedMatmul) -> tuple[SBlockRV, int]:
    """(the block that adds up the products of one thread, the number of threads that share a sum).

    Its loops: block of threads, panel, lane, thread, step, half of each byte, byte of the word, row of x.
    """
    form = parts.form
    n, k = map(int, parts.weights.shape)
    halves = 8 // form.bits
    words = form.group // halves // BYTES  # per group
    # a power of two, which divides the words of a row: no thread is without a word in the last step
    sharing = math.gcd(k // form.group * words, WARP, max(1, THREADS // form.lanes))
    panels = largest_divisor(n // form.lanes, max(1, THREADS // form.lanes // sharing))
    *around, j, k = sch.get_loops(product)
    row = sch.fuse(*around) if around else sch.add_unit_loop(j)
    block, panel, lane = sch.split(j, [None, panels, form.lanes])
    group, half, word, byte = sch.split(k, [None, halves, words, BYTES])
    sch.reorder(block, panel, lane, group, word, half, byte, row)
    step, thread = sch.split(sch.fuse(group, word), [None, sharing])
    sch.reorder(thread, step)
    return sch.rfactor(thread, 0), sharing


def _add_thread_sums(sch: Schedule, product: SBlockRV, at: LoopRV, sharing: int, axis: str) -> None:
    """Add up the sums of the threads along `axis`. The first of them computes the epilogue."""
    sch.reverse_compute_at(product, at, preserve_unit_loops=True)
    thread, *rows = _loops_inside(sch, product, at)
    sch.reorder(*rows, thread)
    sch.bind(thread, axis)
    for epilogue in sch.get_consumers(product):
        sch.set_scope(product, 0, "local")
        sch.reverse_compute_at(epilogue, at)
        _, first = sch.split(sch.add_unit_loop(epilogue), [1, sharing])
        sch.bind(first, axis)


def _load_once(sch: Schedule, block: SBlockRV, buffer: tirx.Buffer, at: LoopRV) -> list[LoopRV]:
    """Load what one iteration of `at` reads of `buffer` into registers; the loops of this copy inside of `at`."""
    sources = [region.source for region in sch.get(block).reads]
    number = next(n for n, source in enumerate(sources) if source.same_as(buffer))
    copy = sch.cache_read(block, number, "local", [block])
    sch.compute_at(copy, at)
    return _loops_inside(sch, copy, at)


def _loops_inside(sch: Schedule, block: SBlockRV, outer: LoopRV) -> list[LoopRV]:
    """The loops around `block` that are inside of `outer`."""
    loops, outside = sch.get_loops(block), sch.get(outer).loop_var
    at = next(n for n, loop in enumerate(loops) if sch.get(loop).loop_var.same_as(outside))
    return loops[at + 1 :]
