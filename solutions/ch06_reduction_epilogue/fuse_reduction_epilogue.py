"""Chapter 6: a schedule primitive that starts a reduction from its bias.

    temp[i, j] = 0                                          D[i, j] = C[i, j]
    temp[i, j] = temp[i, j] + A[i, k] * B[j, k]     ->      D[i, j] = D[i, j] + A[i, k] * B[j, k]
    D[i, j] = temp[i, j] + C[i, j]

`fuse_reduction_epilogue`, at the end, has three steps: analysis (is it safe, and what is added?), transformation (the
fused block) and substitution (put it where the two blocks were). The analysis says yes only to what it can prove.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError
from tvm.s_tir.analysis import get_sblock_access_region
from tvm.s_tir.schedule import SBlockRV
from tvm.script import tirx as T
from tvm.sym import Analyzer
from tvm.tirx import Add, BufferLoad, BufferStore, For, SeqStmt, Stmt, const, is_buffer_var
from tvm_ffi import structural_equal

from chapters.ch06_reduction_epilogue.given import (
    check_domains,
    check_epilogue,
    check_memory,
    check_reduction,
    check_reduction_loops,
    matched_axes,
    simplified,
)
from chapters.kit.ir.block_domain import same_range
from chapters.kit.ir.block_site import BlockSite, locate
from chapters.kit.ir.refuse import require
from chapters.kit.ir.tensor_ir import (
    count,
    is_pure,
    may_write,
    mentions,
    nodes,
    one_a_buffer,
    replace_loads,
    substitute,
    substitute_region,
    variables_of,
    with_fields,
    with_loop_body,
)


@dataclass(frozen=True)
class Fusion:
    """What the analysis finds: `output[indices] = temp[…] + addend` can start in the init of the reduction.

    temp: the buffer between the two blocks. axes: what each axis of the epilogue is in the reduction. `indices` and
    `addend` are written with the reduction's axes.
    """

    site: BlockSite
    temp: Var
    axes: dict[Var, Expr]
    output: Var
    indices: list[Expr]
    addend: Expr

    @property
    def reduction(self) -> SBlock:
        return self.site.producer.block

    @property
    def epilogue(self) -> SBlock:
        return self.site.consumer.block


# --- step 1: analysis -----------------------------------------------------------------------------


def analyse(sch: Schedule, reduction: SBlockRV, epilogue: SBlockRV) -> Fusion:
    """Everything the fusion needs to know. Raises ScheduleError unless it is proved to compute the same."""
    site = locate(sch, reduction, epilogue)
    producer, consumer = site.producer.block, site.consumer.block
    step = check_reduction(site.producer)
    check_reduction_loops(site.producer)
    load, addend = split_sum(consumer, step.buffer)
    axes = matched_axes(match_axes, load.indices, step.indices, consumer, producer)
    fusion = Fusion(
        site=site,
        temp=step.buffer,
        axes=axes,
        output=consumer.body.buffer,
        indices=substitute(consumer.body.indices, axes),
        addend=substitute(addend, axes),
    )
    check_epilogue(site.consumer, axes, fusion.output)
    check_domains(site, step.indices, fusion.indices, fusion.addend)
    check_bystanders(fusion)
    check_memory(site, fusion.temp, fusion.output)
    return fusion


def split_sum(epilogue: SBlock, temp: Var) -> tuple[TensorLoad, Expr]:
    """The load of `temp` and the addend of an epilogue that stores a sum of `temp[…]` and any number of other terms.

    The terms stand in any order and nesting. The addend is the sum of all but `temp[…]`, in the order in which the
    program adds them: `E + (temp[…] + C)` gives `C + E`. A single other term is the addend itself. A copy, `output[…] =
    temp[…]`, adds a constant 0 of the buffer's dtype.

    Refuses, by `require`, every other body: no single store, anything but additions around `temp[…]`, `temp` mentioned
    anywhere else (it is then read twice, or decides where the output goes), an addend that is not pure (`is_pure`).
    """
    # BEGIN exercise 6.1 (about 12 lines): take terms off the sum until one load of `temp` is left, or refuse
    store = epilogue.body
    require(isinstance(store, BufferStore), epilogue, "its body is not one store")
    load, terms = store.value, []
    while isinstance(load, Add):
        load, term = (load.b, load.a) if mentions(load.b, temp) else (load.a, load.b)
        terms.insert(0, term)
    alone = isinstance(load, TensorLoad) and load.source.same_as(temp)
    require(alone, epilogue, f"it does not add something to `{temp.name}` itself")
    require(count(store, temp) == 1, epilogue, f"it uses `{temp.name}` more than once")
    addend = reduce(Add, terms) if terms else const(0, str(temp.dtype))
    require(is_pure(addend), epilogue, "its addend has side effects or reads through a pointer")
    return load, addend
    # END exercise 6.1


def match_axes(
    read: Sequence[Expr], written: Sequence[Expr], epilogue: SBlock, reduction: SBlock
) -> dict[Var, Expr]:
    """What each axis of the epilogue is in the reduction, found through the element of `temp` that both name.

    read: the indices at which the epilogue reads `temp`, in the epilogue's axes. written: those at which the reduction
    writes it, in the reduction's. `temp[vj, vi]` read and `temp[r0, r1]` written give {vj: r0, vi: r1}: neither the
    position nor the name of an axis counts. An axis of the epilogue that is not in `read` must have a single value,
    and becomes that value.

    Refuses unless `read`, with its axes replaced, is `written`; and unless matched axes run over the same range.
    """
    # BEGIN exercise 6.2 (about 16 lines): pair the variables in order of appearance, then prove it
    own = {axis.var for axis in epilogue.iter_vars}
    theirs = {axis.var: axis.dom for axis in reduction.iter_vars}
    pairs = zip(variables_of(read), variables_of(written), strict=False)
    axes: dict[Var, Expr] = {mine: other for mine, other in pairs if mine in own}
    same = structural_equal(substitute(read, axes), written)
    require(same, epilogue, "it reads the reduction's result at other indices than it is written")
    for axis in epilogue.iter_vars:
        name = axis.var.name
        if axis.var in axes:
            matched = axes[axis.var] in theirs and same_range(axis.dom, theirs[axes[axis.var]])
            require(matched, epilogue, f"its axis `{name}` has another range than the reduction's")
        else:
            one = Analyzer().can_prove_equal(axis.dom.extent, 1)
            require(one, epilogue, f"its axis `{name}` is no axis of the reduction's result")
            axes[axis.var] = axis.dom.min
    return axes
    # END exercise 6.2


def check_bystanders(fusion: Fusion) -> None:
    """Refuse if anything else in the function could tell the difference.

    After the fusion `temp` is gone, the addend is read before the first reduction step and not after the last, and
    `output` holds partial sums from the first step on. `fusion.site.span` holds all statements that run in between,
    among them the two blocks.
    """
    # BEGIN exercise 6.3 (about 14 lines): who else sees temp, output, and what the addend reads?
    site, reduction, epilogue = fusion.site, fusion.reduction, fusion.epilogue
    temp, output = fusion.temp.name, fusion.output.name
    local = any(fusion.temp.same_as(buffer) for buffer in site.scope.alloc_buffers)
    require(local, reduction, f"`{temp}` is not allocated by the block around it, so others see it")
    known = 1 + count(reduction, fusion.temp) + count(epilogue, fusion.temp)
    private = count(site.scope, fusion.temp) == known
    require(private, reduction, f"others than `{epilogue.name_hint}` use `{temp}`")
    untouched = count(site.span, fusion.output) == count(epilogue, fusion.output)
    require(untouched, epilogue, f"`{output}` is also used between the reduction's start and it")
    for buffer in {load.source for load in nodes(fusion.addend, TensorLoad)}:
        written = may_write(site.span, buffer)
        require(
            not written,
            epilogue,
            f"`{buffer.name}` may be written before it, after the reduction began",
        )
    # END exercise 6.3


# --- step 2: transformation -----------------------------------------------------------------------


def fused_block(fusion: Fusion) -> SBlock:
    """The reduction with `output` for `temp` and the addend for the init's 0.

    It keeps the reduction's name, axes and annotations. reads: what the epilogue read and then what the reduction read,
    without `temp`, each buffer once (`one_a_buffer`). writes: where the epilogue wrote.
    """
    # BEGIN exercise 6.4 (about 14 lines): the init, the step, the regions
    reduction, epilogue = fusion.reduction, fusion.epilogue
    total = BufferLoad(fusion.output, fusion.indices)
    step = replace_loads(reduction.body.value, fusion.temp, total)
    reads = [substitute_region(region, fusion.axes) for region in epilogue.reads]
    reads = [
        region for region in [*reads, *reduction.reads] if not region.source.same_as(fusion.temp)
    ]
    return with_fields(
        reduction,
        reads=one_a_buffer(reads),
        writes=[substitute_region(region, fusion.axes) for region in epilogue.writes],
        init=BufferStore(fusion.output, simplified(fusion.addend), fusion.indices),
        body=BufferStore(fusion.output, step, fusion.indices),
    )
    # END exercise 6.4


# --- step 3: substitution -------------------------------------------------------------------------


def new_scope(fusion: Fusion, fused: SBlock) -> SBlock:
    """The block around both, with `fused` for the reduction, without the epilogue, loops left empty, and `temp`."""
    # BEGIN exercise 6.5 (about 5 lines): rebuild the scope's body and its allocations
    scope = fusion.site.scope
    body = rebuilt(scope.body, fusion, fused)
    kept = [buffer for buffer in scope.alloc_buffers if not buffer.same_as(fusion.temp)]
    return with_fields(scope, body=body, alloc_buffers=kept)
    # END exercise 6.5


def rebuilt(stmt: Stmt, fusion: Fusion, fused: SBlock) -> Stmt | None:
    """`stmt` after the fusion; None if nothing is left of it. What does not change stays the same object."""
    # BEGIN exercise 6.5 (about 16 lines): a sequence, a loop, the two blocks; anything else stays
    if isinstance(stmt, SeqStmt):
        parts = [rebuilt(part, fusion, fused) for part in stmt.seq]
        parts = [part for part in parts if part is not None]
        return SeqStmt(parts) if len(parts) > 1 else parts[0] if parts else None
    if isinstance(stmt, For):
        body = rebuilt(stmt.body, fusion, fused)
        if body is None or body.same_as(stmt.body):
            return stmt if body is not None else None
        return with_loop_body(stmt, body)
    if isinstance(stmt, SBlockRealize) and stmt.block.same_as(fusion.epilogue):
        return None
    if isinstance(stmt, SBlockRealize) and stmt.block.same_as(fusion.reduction):
        return SBlockRealize(stmt.iter_values, stmt.predicate, fused)
    return stmt
    # END exercise 6.5


def fuse_reduction_epilogue(
    sch: Schedule, reduction_block: SBlockRV | str, epilogue_block: SBlockRV | str
) -> None:
    """Start the sum of `reduction_block` from what `epilogue_block` adds to it, and remove `epilogue_block`.

    Blocks are given by name or by handle. `sch` changes in place: the handle of the reduction then means the fused
    block, handles of its loops and of other blocks stay valid, the epilogue's do not. `sch.trace` lacks it: Python can
    register no kind of instruction. Floating-point sums are reassociated: the bias is added first and not last. Integer
    sums are exact, barring signed overflow on the way, which TVM leaves undefined. Buffers that are passed to the
    function are taken to be different memory, as everywhere in TVM.

    Raises tvm.s_tir.ScheduleError, and leaves `sch` exactly as it was, unless the result is proved to be the same.
    Built-in: `Schedule.fuse_reduction_epilogue`, src/s_tir/schedule/primitive/compute_inline.cc.
    """
    names = (reduction_block, epilogue_block)
    reduction, epilogue = (sch.get_sblock(n) if isinstance(n, str) else n for n in names)
    fusion = analyse(sch, reduction, epilogue)
    fused = fused_block(fusion)
    scope = new_scope(fusion, fused)
    # BEGIN exercise 6.5 (about 2 lines): swap the scope; the map says which new block is which old one
    reuse = {fusion.site.scope: scope, fusion.reduction: fused}
    sch.state.replace(fusion.site.scope_sref, scope, reuse)
    # END exercise 6.5


# --- after decompose_reduction --------------------------------------------------------------------


def refresh_regions(sch: Schedule, block: SBlockRV | str) -> None:
    """Write into a block what it really reads and writes, as `tensorize` compares it; `sch` changes in place.

    `decompose_reduction` of a fused block leaves the new init block with no reads, though it reads the bias, and the
    bias in the reads of the update, which no longer reads it. The order is that of first use. Raises ScheduleError for
    a block that reaches memory through a pointer.

    `get_sblock_access_region` takes the block and a map, from the variable of each buffer it is to speak of to the
    buffer itself: in this release one and the same object.
    """
    # BEGIN exercise 6.6 (about 7 lines): ask TVM for the regions, and replace the block by itself
    sref = sch.get_sref(sch.get_sblock(block) if isinstance(block, str) else block)
    old = sref.stmt
    buffers = {var: var for var in nodes(old, Var) if is_buffer_var(var)}
    reads, writes, opaque = get_sblock_access_region(old, buffers)
    if opaque:
        raise ScheduleError(f"Block `{old.name_hint}` reaches memory through a pointer.")
    new = with_fields(old, reads=reads, writes=writes)
    sch.state.replace(sref, new, {old: new})
    # END exercise 6.6


# --- what it is worth, and where the built-in is less careful -------------------------------------


def predicted_speedup(k: int, operations_per_second: float, bytes_per_second: float) -> float:
    """How many times faster a fused int8 matmul is than the same matmul followed by a pass that adds the bias.

    An output element of the fused one costs `2 * k` operations and one 4-byte store. The separate pass adds a 4-byte
    load of the sum and another store. A store moves 8 bytes: the processor reads the cache line before it writes it.
    Operations and traffic are taken to add up; the bias itself stays in the cache.
    """
    # BEGIN exercise 6.7 (about 3 lines): seconds an element, fused and not
    fused = 2 * k / operations_per_second + 8 / bytes_per_second
    separate_pass = (4 + 8) / bytes_per_second
    return (fused + separate_pass) / fused
    # END exercise 6.7


def lost_read() -> tirx.PrimFunc:
    """A program on which the built-in's fused block reads an element that its T.reads does not declare.

    It has blocks `matmul` and `bias`, both primitives accept it, and both are right: only the declaration is wrong.
    """
    # BEGIN exercise 6.8 (about 18 lines): what if the epilogue adds something the reduction reads too?

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((4, 4), "int32"), D: T.Buffer((4, 4), "int32")):
        temp = T.sblock_alloc_buffer((4, 4), "int32")
        for i, j, k in T.grid(4, 4, 4):
            with T.sblock("matmul"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    temp[vi, vj] = 0
                temp[vi, vj] = temp[vi, vj] + A[vi, vk] * A[vk, vj]
        for i, j in T.grid(4, 4):
            with T.sblock("bias"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = temp[vi, vj] + A[vi, vj]

    return main
    # END exercise 6.8
