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

from tvm.ir import Expr, Range, TensorLoad, Var
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError, ScheduleState
from tvm.s_tir.analysis import get_sblock_access_region
from tvm.s_tir.schedule import SBlockRV
from tvm.script import tirx as T
from tvm.sym import Analyzer
from tvm.tirx import (
    Add,
    BufferLoad,
    BufferStore,
    DeclBuffer,
    FloatImm,
    For,
    ForKind,
    IntImm,
    IterVar,
    PrimFunc,
    SeqStmt,
    Stmt,
    Sub,
    const,
    is_buffer_var,
)
from tvm_ffi import structural_equal

from chapters.toolkit.ir.block_domain import is_injective, same_range, visits_each_point_once
from chapters.toolkit.ir.block_site import Nest, Site, locate
from chapters.toolkit.ir.refuse import require
from chapters.toolkit.ir.tensor_ir import (
    count,
    is_pure,
    may_write,
    mentions,
    nodes,
    one_a_buffer,
    replace_loads,
    substitute,
    substitute_region,
    uses_pointers,
    with_fields,
    with_loop_body,
)


@dataclass(frozen=True)
class Fusion:
    """What the analysis finds: `output[indices] = temp[…] + addend` can start in the init of the reduction.

    temp: the buffer between the two blocks. axes: what each axis of the epilogue is in the reduction. `indices` and
    `addend` are written with the reduction's axes.
    """

    site: Site
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
    step = check_reduction(site.producer)
    block, temp = site.consumer.block, step.buffer
    load, addend = split_sum(block, temp)
    axes = match_axes(load.indices, step.indices, block, site.producer.block)
    fusion = Fusion(
        site=site,
        temp=temp,
        axes=axes,
        output=block.body.buffer,
        indices=substitute(block.body.indices, axes),
        addend=substitute(addend, axes),
    )
    check_epilogue(fusion)
    check_domains(sch, fusion, step)
    check_bystanders(fusion)
    return fusion


def check_reduction(nest: Nest) -> BufferStore:
    """Refuse unless the block is a complete sum: init 0, one store, each step adds to it. Returns the step's store."""
    block, step, init = nest.block, nest.block.body, nest.block.init
    require(init is not None, block, "it has no init, so it is no reduction")
    stores = isinstance(step, BufferStore) and isinstance(init, BufferStore)
    require(stores, block, "its body and its init are not one store each")
    same = init.buffer.same_as(step.buffer) and structural_equal(init.indices, step.indices)
    require(same, block, "its init sets another element than its step adds to")
    zero = Analyzer().simplify(init.value)
    require(isinstance(zero, (IntImm, FloatImm)) and zero.value == 0, block, "its init is not 0")
    total = BufferLoad(step.buffer, step.indices)
    require(adds_to(step.value, total), block, f"its step does not add to `{step.buffer.name}`")
    spatial = {axis.var for axis in block.iter_vars if axis.iter_type == IterVar.DataPar}
    reducing = {axis.var for axis in block.iter_vars if axis.iter_type == IterVar.CommReduce}
    known = len(spatial) + len(reducing) == len(block.iter_vars)
    require(bool(reducing) and known, block, "its axes are not spatial ones and reductions")
    kept = not any(mentions(step.indices, axis) for axis in reducing)
    require(kept, block, "a reduction axis indexes its output")
    own = not block.alloc_buffers and not block.match_buffers and len(block.writes) == 1
    require(own, block, "it allocates or matches buffers, or declares more than one write")
    check_reduction_loops(nest, reducing)
    return step


def adds_to(value: Expr, total: TensorLoad) -> bool:
    """Whether `value` is `total` plus or minus what does not mention its buffer: value(t + c) = value(t) + c."""
    if isinstance(value, TensorLoad):
        return structural_equal(value, total)
    if not isinstance(value, (Add, Sub)):
        return False
    in_a, in_b = mentions(value.a, total.source), mentions(value.b, total.source)
    if in_a:
        return not in_b and adds_to(value.a, total)
    return isinstance(value, Add) and adds_to(value.b, total)


def check_reduction_loops(nest: Nest, reducing: set[Var]) -> None:
    """Refuse a reduction that several threads or lanes share: each would start from the bias."""
    values = zip(nest.block.iter_vars, nest.realize.iter_values, strict=True)
    summed = [value for axis, value in values if axis.var in reducing]
    for loop in nest.loops:
        serial = loop.kind in (ForKind.SERIAL, ForKind.UNROLLED)
        name = loop.loop_var.name
        alone = serial or not mentions(summed, loop.loop_var)
        require(alone, nest.block, f"its reduction loop `{name}` does not run serially")


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


def variables_of(node) -> list[Var]:
    """The variables of `node`, each once, in order of appearance."""
    return list(dict.fromkeys(nodes(node, Var)))


def check_epilogue(fusion: Fusion) -> None:
    """Refuse unless the epilogue is a complete block: spatial axes, one output, nothing of its own, in no pipeline."""
    block = fusion.epilogue
    spatial = all(axis.iter_type == IterVar.DataPar for axis in block.iter_vars)
    require(spatial, block, "its axes are not all spatial")
    alike = all(str(mine.ty) == str(other.ty) for mine, other in fusion.axes.items())
    require(alike, block, "its axes are of another integer type than the reduction's")
    own = not block.alloc_buffers and not block.match_buffers and block.init is None
    require(own, block, "it allocates or matches buffers, or has an init")
    one = [region.source for region in block.writes] == [fusion.output]
    require(one, block, f"it does not declare `{fusion.output.name}` as the only buffer it writes")
    keys = [key for loop in fusion.site.consumer.loops for key in loop.annotations]
    staged = any(key.startswith("software_pipeline") for key in keys)
    require(not staged, block, "it is a stage of a software pipeline")


def check_domains(sch: Schedule, fusion: Fusion, step: BufferStore) -> None:
    """Refuse unless both blocks visit every point of their domain once, and no two points share an element."""
    site, ranges = fusion.site, spatial_ranges(fusion.reduction)
    for nest in (site.producer, site.consumer):
        once = visits_each_point_once(nest.realize, nest.loops)
        require(once, nest.block, "its loops do not visit each point of its domain exactly once")
    one_each = is_injective(step.indices, ranges)
    require(one_each, fusion.reduction, "two of its points may write the same element")
    one_each = is_injective(fusion.indices, ranges)
    require(one_each, fusion.epilogue, "two of its points may write the same element")
    fixed = [fusion.addend, fusion.indices, fusion.epilogue.reads, fusion.epilogue.writes]
    for loop in site.consumer.loops[len(site.shared) :]:
        name = loop.loop_var.name
        hidden = mentions(fixed, loop.loop_var)
        require(not hidden, fusion.epilogue, f"it uses the loop variable `{name}` directly")
    if site.shared:
        check_shared_loops(sch, site)


def check_shared_loops(sch: Schedule, site: Site) -> None:
    """Refuse unless each iteration of the loops around both blocks finishes the sums that it then uses."""
    fresh = ScheduleState(sch.mod)  # the flags of `sch` may be older than its module
    block = site.consumer.block
    covered = fresh._get_cached_flags(fresh.get_sref(block)).region_cover
    require(covered, block, "it may read sums that a later iteration of the shared loops finishes")


def spatial_ranges(block: SBlock) -> dict[Var, Range]:
    return {a.var: a.dom for a in block.iter_vars if a.iter_type == IterVar.DataPar}


def check_bystanders(fusion: Fusion) -> None:
    """Refuse if anything else in the function could tell the difference.

    After the fusion `temp` is gone, the addend is read before the first reduction step and not after the last, and
    `output` holds partial sums from the first step on. `fusion.site.span` holds all statements that run in between,
    among them the two blocks.
    """
    # BEGIN exercise 6.3 (about 14 lines): who else sees temp, output, and what the addend reads?
    raise NotImplementedError("exercise 6.3")
    # END exercise 6.3
    check_memory(fusion)


def check_memory(fusion: Fusion) -> None:
    """Refuse where names do not tell who uses which memory: second names, pointers, strides, threads' own memory."""
    block, output = fusion.epilogue, fusion.output
    sref = fusion.site.scope_sref
    while sref is not None:
        root, sref = sref.stmt, sref.parent
        alone = isinstance(root, For) or not root.match_buffers
        require(alone, block, "a block around it gives a buffer a second name")
    require(not nodes(root, DeclBuffer), block, "its function gives a buffer a second name")
    direct = not uses_pointers(fusion.site.span)
    require(
        direct, block, "a call or a pointer in the reduction, or before it, may reach any memory"
    )
    dense = not output.strides and not fusion.temp.strides
    require(dense, block, f"`{output.name}` or the sum has strides, and elements may overlap")
    shared = output.scope() in ("global", fusion.temp.scope())
    require(shared, block, f"`{output.name}` is in another kind of memory than the sum")


# --- step 2: transformation -----------------------------------------------------------------------


def fused_block(fusion: Fusion) -> SBlock:
    """The reduction with `output` for `temp` and the addend for the init's 0.

    It keeps the reduction's name, axes and annotations. reads: what the epilogue read and then what the reduction read,
    without `temp`, each buffer once (`one_a_buffer`). writes: where the epilogue wrote.
    """
    # BEGIN exercise 6.4 (about 14 lines): the init, the step, the regions
    raise NotImplementedError("exercise 6.4")
    # END exercise 6.4


def simplified(addend: Expr) -> Expr:
    """`addend` as the built-in writes it; floats as they are, for TVM takes x * 0.0 for 0.0, even where x is NaN."""
    exact = "int" in str(addend.ty.dtype)
    return Analyzer().simplify(addend) if exact else addend


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
    reads, writes, _opaque = get_sblock_access_region(old, {})
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


def lost_read() -> PrimFunc:
    """A program on which the built-in's fused block reads an element that its T.reads does not declare.

    It has blocks `matmul` and `bias`, both primitives accept it, and both are right: only the declaration is wrong.
    """
    # BEGIN exercise 6.8 (about 18 lines): what if the epilogue adds something the reduction reads too?
    raise NotImplementedError("exercise 6.8")
    # END exercise 6.8
