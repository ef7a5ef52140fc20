"""Chapter 6: a schedule primitive that starts a reduction from its bias.

    temp[i, j] = 0                                          D[i, j] = C[i, j]
    temp[i, j] = temp[i, j] + A[i, k] * B[j, k]     ->      D[i, j] = D[i, j] + A[i, k] * B[j, k]
    D[i, j] = temp[i, j] + C[i, j]

`fuse_reduction_epilogue`, at the end, has three steps. Analysis asks whether the fusion is safe, and what is added; it
accepts only what it can prove. Transformation, `fused_block` in given.py, builds the fused block. Substitution puts it
into the schedule.
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
from tvm.tirx import Add, BufferStore, For, SeqStmt, Stmt, const, is_buffer_var
from tvm_ffi import structural_equal

from chapters.ch06_reduction_epilogue.given import (
    check_domains,
    check_epilogue,
    check_memory,
    check_reduction,
    check_reduction_loops,
    fused_block,
    matched_axes,
)
from chapters.kit.ir.block_domain import same_range
from chapters.kit.ir.block_site import BlockSite, locate
from chapters.kit.ir.refuse import require
from chapters.kit.ir.region_cover import covers
from chapters.kit.ir.row_index import is_one
from chapters.kit.ir.tensor_ir import (
    count,
    is_pure,
    loads,
    may_write,
    mentions,
    nodes,
    substitute,
    summed_values,
    variables_of,
    with_fields,
    with_loop_body,
)


@dataclass(frozen=True)
class Fusion:
    """What the analysis has found: the epilogue stores `temp[…] + addend` into `output[indices]`.

    site: where the two blocks stand; site.scope is the block around both, site.span the statements from the reduction
    to the epilogue. temp: the buffer between the two blocks. axes: what each axis of the epilogue is in the reduction.
    `indices` and `addend` are written with the reduction's axes.
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
    """Return what the other two steps need. Raises ScheduleError unless the fusion is proved to compute the same."""
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
    check_shared_loops(site, step.indices)
    check_memory(site, fusion.temp, fusion.output)
    return fusion


def split_sum(epilogue: SBlock, temp: Var) -> tuple[TensorLoad, Expr]:
    """Return the load of `temp` and the addend of an epilogue that stores a sum of `temp[…]` and other terms.

    The terms may have any order and nesting. The addend is the sum of all terms except `temp[…]`: `E + (temp[…] + C)`
    gives `C + E`, or `E + C`. A single other term is the addend itself. A copy, `output[…] = temp[…]`, adds a constant
    0 of the dtype of `temp`.

    Refuses by `require`: a body that is not one store; anything but additions around `temp[…]`; `temp` anywhere else in
    the store, in an index too; an addend that is not pure.
    """
    # BEGIN exercise 6.1 (about 12 lines): go down to the load of `temp` and collect the other terms, or refuse
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
    """Return for each axis of the epilogue what it is in the reduction.

    read: the indices at which the epilogue reads `temp`, in the epilogue's axes. written: the indices at which the
    reduction writes it, in the reduction's axes. `temp[vj, vi]` read and `temp[r0, r1]` written give {vj: r0, vi: r1}.
    Neither the position nor the name of an axis counts. An axis of the epilogue that does not occur in `read` must have
    a single value, and is mapped to it.

    Refuses unless `read`, with its axes replaced, equals `written`, and unless matched axes have the same range.
    """
    # BEGIN exercise 6.2 (about 16 lines): guess a pairing, prove it, compare the ranges
    own = {axis.var for axis in epilogue.iter_vars}
    theirs = {axis.var: axis.dom for axis in reduction.iter_vars}
    pairs = zip(variables_of(read), variables_of(written), strict=False)
    axes: dict[Var, Expr] = {mine: other for mine, other in pairs if mine in own}
    same = structural_equal(substitute(read, axes), written)
    require(same, epilogue, "it reads the sums at other indices than the reduction writes them")
    for axis in epilogue.iter_vars:
        name = axis.var.name
        if axis.var in axes:
            matched = axes[axis.var] in theirs and same_range(axis.dom, theirs[axes[axis.var]])
            require(matched, epilogue, f"its axis `{name}` has another range than the reduction's")
        else:
            one = Analyzer().can_prove_equal(axis.dom.extent, 1)
            require(one, epilogue, f"its axis `{name}` has several values for one sum")
            axes[axis.var] = axis.dom.min
    return axes
    # END exercise 6.2


def check_bystanders(fusion: Fusion) -> None:
    """Refuse if another block, or the caller, could notice the fusion.

    After the fusion `temp` is gone. The addend is read before the first step instead of after the last one. `output`
    holds partial sums from the first step on.
    """
    # BEGIN exercise 6.3 (about 14 lines): who else uses temp, the output, and what the addend reads?
    site, reduction, epilogue = fusion.site, fusion.reduction, fusion.epilogue
    temp, output = fusion.temp.name, fusion.output.name
    local = any(fusion.temp.same_as(buffer) for buffer in site.scope.alloc_buffers)
    require(local, reduction, f"`{temp}` is not allocated by the block around it, so others see it")
    known = 1 + count(reduction, fusion.temp) + count(epilogue, fusion.temp)
    private = count(site.scope, fusion.temp) == known
    require(private, reduction, f"blocks other than `{epilogue.name_hint}` use `{temp}`")
    untouched = count(site.span, fusion.output) == count(epilogue, fusion.output)
    require(untouched, epilogue, f"`{output}` is used before it, after the reduction began")
    for buffer in {load.source for load in nodes(fusion.addend, TensorLoad)}:
        written = may_write(site.span, buffer)
        require(
            not written,
            epilogue,
            f"`{buffer.name}` may be written before it, after the reduction began",
        )
    # END exercise 6.3


def check_shared_loops(site: BlockSite, written: Sequence[Expr]) -> None:
    """Refuse unless each sum is finished when the epilogue reads it, in whatever loops the two blocks stand together.

    site.shared: the loops around both blocks. site.producer, site.consumer: the reduction and the epilogue, each with
    its `block`, its `realize` and all `loops` around it, the shared ones first. written: the indices at which the
    reduction stores, in its own axes. What a block declares in `T.reads` may be wrong.
    """
    # BEGIN exercise 6.4 (about 9 lines): when is a sum finished, and when is it read?
    first, last = site.producer, site.consumer
    for loop in site.shared:
        split = mentions(summed_values(first.realize), loop.loop_var) and not is_one(loop.extent)
        name = loop.loop_var.name
        require(not split, last.block, f"it runs between steps of the sums, in the loop `{name}`")
    for load in loads(last.block.body, first.block.body.buffer):
        there = (first.realize, first.loops), written, (last.realize, last.loops), load.indices
        late = "it may read sums that a later iteration of the shared loops finishes"
        require(not site.shared or covers(site.shared, *there), last.block, late)
    # END exercise 6.4


# --- step 3: substitution -------------------------------------------------------------------------


def new_scope(fusion: Fusion, fused: SBlock) -> SBlock:
    """Return the block around both after the fusion.

    `fused` is in the place of the reduction, in its loops and with its bindings. The epilogue is gone, with each loop
    and sequence that it leaves empty, and `temp` is no longer allocated. A statement in which nothing changes is the
    same object as before.
    """
    # BEGIN exercise 6.5 (about 22 lines): rebuild the statements of the scope from the inside out

    def rebuilt(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, SBlockRealize) and stmt.block.same_as(fusion.reduction):
            return SBlockRealize(stmt.iter_values, stmt.predicate, fused)
        if isinstance(stmt, SBlockRealize) and stmt.block.same_as(fusion.epilogue):
            return None
        if isinstance(stmt, For):
            body = rebuilt(stmt.body)
            if body is None or body.same_as(stmt.body):
                return stmt if body is not None else None
            return with_loop_body(stmt, body)
        if isinstance(stmt, SeqStmt):
            parts = [part for part in map(rebuilt, stmt.seq) if part is not None]
            if len(parts) < 2:
                return parts[0] if parts else None
            same = len(parts) == len(stmt.seq) and all(map(Stmt.same_as, parts, stmt.seq))
            return stmt if same else SeqStmt(parts)
        return stmt

    scope = fusion.site.scope
    kept = [buffer for buffer in scope.alloc_buffers if not buffer.same_as(fusion.temp)]
    return with_fields(scope, body=rebuilt(scope.body), alloc_buffers=kept)
    # END exercise 6.5


def fuse_reduction_epilogue(
    sch: Schedule, reduction_block: SBlockRV | str, epilogue_block: SBlockRV | str
) -> None:
    """Start the sum of `reduction_block` from what `epilogue_block` adds to it, and remove `epilogue_block`.

    Blocks are given by name or by handle. `sch` changes in place. The handle of the reduction then finds the fused
    block; handles of its loops and of other blocks stay valid, and the epilogue's do not. `sch.trace` does not record
    the fusion, because Python cannot register a kind of instruction. Floating-point sums are reassociated: the bias is
    added first instead of last. Integer sums are exact unless a signed sum overflows on the way. Arguments of the
    function are assumed to be different memory, as everywhere in TVM.
    Raises tvm.s_tir.ScheduleError, and leaves `sch` exactly as it was, unless the result is proved to be the same.
    Built-in: `Schedule.fuse_reduction_epilogue`, src/s_tir/schedule/primitive/compute_inline.cc.
    """
    names = (reduction_block, epilogue_block)
    reduction, epilogue = (sch.get_sblock(n) if isinstance(n, str) else n for n in names)
    fusion = analyse(sch, reduction, epilogue)
    fused = fused_block(fusion)
    scope = new_scope(fusion, fused)
    # BEGIN exercise 6.5 (about 2 lines): put the new scope into the schedule, so that its handles stay valid
    reuse = {fusion.site.scope: scope, fusion.reduction: fused}
    sch.state.replace(fusion.site.scope_sref, scope, reuse)
    # END exercise 6.5


# --- after decompose_reduction --------------------------------------------------------------------


def refresh_regions(sch: Schedule, block: SBlockRV | str) -> None:
    """Declare in T.reads and T.writes what a block really reads and writes; `sch` changes in place.

    `decompose_reduction` of a fused block leaves wrong declarations, and `tensorize` compares them. The new init block
    has no reads, though it reads the bias. The update still declares the bias, which it no longer reads. The new lists
    are in the order of first use. Raises ScheduleError for a block that reaches memory through a pointer.
    """
    # BEGIN exercise 6.6 (about 7 lines): ask TVM for the regions, and replace the block by one that declares them
    sref = sch.get_sref(sch.get_sblock(block) if isinstance(block, str) else block)
    old = sref.stmt
    buffers = {var: var for var in nodes(old, Var) if is_buffer_var(var)}
    reads, writes, opaque = get_sblock_access_region(old, buffers)
    if opaque:
        raise ScheduleError(f"Block `{old.name_hint}` reaches memory through a pointer.")
    new = with_fields(old, reads=reads, writes=writes)
    sch.state.replace(sref, new, {old: new})
    # END exercise 6.6


# --- where the built-in is less careful -----------------------------------------------------------


def lost_read() -> tirx.PrimFunc:
    """Return a program on which the built-in's fused block reads an element that its T.reads does not declare.

    It has blocks `matmul` and `bias`. Both primitives accept it and get the numbers right.
    """
    # BEGIN exercise 6.7 (about 18 lines): a program whose epilogue adds something that the reduction reads, too

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
    # END exercise 6.7
