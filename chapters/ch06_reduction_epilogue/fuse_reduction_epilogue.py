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
    axes = match_axes(load.indices, step.indices, consumer, producer)
    fusion = Fusion(
        site=site,
        temp=step.buffer,
        axes=axes,
        output=consumer.body.buffer,
        indices=substitute(consumer.body.indices, axes),
        addend=substitute(addend, axes),
    )
    check_epilogue(site.consumer, axes, fusion.output)
    check_domains(sch, site, step.indices, fusion.indices, fusion.addend)
    check_bystanders(fusion)
    check_memory(site, fusion.temp, fusion.output)
    return fusion


def split_sum(epilogue: SBlock, temp: Var) -> tuple[TensorLoad, Expr]:
    """The load of `temp` and the addend of an epilogue `output[…] = temp[…] + addend` (or `addend + temp[…]`).

    A copy, `output[…] = temp[…]`, adds a constant 0 of the buffer's dtype. Refuses, by `require`, every other body: no
    single store, anything but a sum, `temp` mentioned anywhere else (it is then read twice, or decides where the output
    goes), an addend that is not pure (`is_pure`).
    """
    # BEGIN exercise 6.1 (about 12 lines): a sum of one load of `temp` and something else, or refuse
    raise NotImplementedError("exercise 6.1")
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
    raise NotImplementedError("exercise 6.2")
    # END exercise 6.2


def check_bystanders(fusion: Fusion) -> None:
    """Refuse if anything else in the function could tell the difference.

    After the fusion `temp` is gone, the addend is read before the first reduction step and not after the last, and
    `output` holds partial sums from the first step on. `fusion.site.span` holds all statements that run in between,
    among them the two blocks.
    """
    # BEGIN exercise 6.3 (about 14 lines): who else sees temp, output, and what the addend reads?
    raise NotImplementedError("exercise 6.3")
    # END exercise 6.3


# --- step 2: transformation -----------------------------------------------------------------------


def fused_block(fusion: Fusion) -> SBlock:
    """The reduction with `output` for `temp` and the addend for the init's 0.

    It keeps the reduction's name, axes and annotations. reads: what the epilogue read and then what the reduction read,
    without `temp`, each buffer once (`one_a_buffer`). writes: where the epilogue wrote.
    """
    # BEGIN exercise 6.4 (about 14 lines): the init, the step, the regions
    raise NotImplementedError("exercise 6.4")
    # END exercise 6.4


# --- step 3: substitution -------------------------------------------------------------------------


def new_scope(fusion: Fusion, fused: SBlock) -> SBlock:
    """The block around both, with `fused` for the reduction, without the epilogue, loops left empty, and `temp`."""
    # BEGIN exercise 6.5 (about 5 lines): rebuild the scope's body and its allocations
    raise NotImplementedError("exercise 6.5")
    # END exercise 6.5


def rebuilt(stmt: Stmt, fusion: Fusion, fused: SBlock) -> Stmt | None:
    """`stmt` after the fusion; None if nothing is left of it. What does not change stays the same object."""
    # BEGIN exercise 6.5 (about 16 lines): a sequence, a loop, the two blocks; anything else stays
    raise NotImplementedError("exercise 6.5")
    # END exercise 6.5


def fuse_reduction_epilogue(
    sch: Schedule, reduction_block: SBlockRV | str, epilogue_block: SBlockRV | str
) -> None:
    """Start the sum of `reduction_block` from what `epilogue_block` adds to it, and remove `epilogue_block`.

    Blocks are given by name or by handle. `sch` changes in place: the handle of the reduction then means the fused
    block, handles of its loops and of other blocks stay valid, the epilogue's do not. `sch.trace` does not record it.

    Floating-point sums are reassociated: the bias is added first and not last. Integer sums are exact, barring signed
    overflow on the way, which TVM leaves undefined. Buffers that are passed to the function are taken to be different
    memory, as everywhere in TVM.

    Raises tvm.s_tir.ScheduleError, and leaves `sch` exactly as it was, unless the result is proved to be the same.
    Built-in: `Schedule.fuse_reduction_epilogue`, src/s_tir/schedule/primitive/compute_inline.cc.
    """
    names = (reduction_block, epilogue_block)
    reduction, epilogue = (sch.get_sblock(n) if isinstance(n, str) else n for n in names)
    fusion = analyse(sch, reduction, epilogue)
    fused = fused_block(fusion)
    scope = new_scope(fusion, fused)
    # BEGIN exercise 6.5 (about 2 lines): swap the scope; the map says which new block is which old one
    raise NotImplementedError("exercise 6.5")
    # END exercise 6.5


# --- after decompose_reduction --------------------------------------------------------------------


def refresh_regions(sch: Schedule, block: SBlockRV | str) -> None:
    """Write into a block what it really reads and writes, as `tensorize` compares it; `sch` changes in place.

    `decompose_reduction` of a fused block leaves the new init block with no reads, though it reads the bias, and the
    bias in the reads of the update, which no longer reads it. The order is that of first use.

    `get_sblock_access_region` takes the block and a map, from the variable of each buffer it is to speak of to the
    buffer itself: in this release one and the same object.
    """
    # BEGIN exercise 6.6 (about 7 lines): ask TVM for the regions, and replace the block by itself
    sref = sch.get_sref(sch.get_sblock(block) if isinstance(block, str) else block)
    old = sref.stmt
    reads, writes, opaque = get_sblock_access_region(old, {})
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
    raise NotImplementedError("exercise 6.7")
    # END exercise 6.7


def lost_read() -> tirx.PrimFunc:
    """A program on which the built-in's fused block reads an element that its T.reads does not declare.

    It has blocks `matmul` and `bias`, both primitives accept it, and both are right: only the declaration is wrong.
    """
    # BEGIN exercise 6.8 (about 18 lines): what if the epilogue adds something the reduction reads too?
    raise NotImplementedError("exercise 6.8")
    # END exercise 6.8
