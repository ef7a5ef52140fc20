"""What chapter 6 provides: the fused block, and conditions on each block, its loops and its memory.

A condition raises a ScheduleError or passes.

The exercises check how the two blocks are related. These functions check each block by itself: the reduction is a sum,
the epilogue is elementwise, both visit each point once, and no two buffers share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import tirx
from tvm.ir import Expr, Range, TensorLoad, Var
from tvm.s_tir import SBlock, ScheduleError
from tvm.sym import Analyzer, detect_iter_map, inverse_affine_iter_map
from tvm_ffi import structural_equal

from chapters.kit.ir.block_domain import fills, is_injective, visits_each_point_once
from chapters.kit.ir.block_site import BlockSite, Nest
from chapters.kit.ir.refuse import require
from chapters.kit.ir.row_index import is_one
from chapters.kit.ir.tensor_ir import (
    mentions,
    merge_regions,
    nodes,
    replace_loads,
    substitute,
    substitute_region,
    summed_values,
    uses_pointers,
    with_fields,
)

# --- the reduction --------------------------------------------------------------------------------


def check_reduction(nest: Nest) -> tirx.BufferStore:
    """Refuse unless the block is a complete sum: init 0, one store, each step adds to it. Returns the step's store."""
    block, step, init = nest.block, nest.block.body, nest.block.init
    require(init is not None, block, "it has no init, so it is no reduction")
    stores = isinstance(step, tirx.BufferStore) and isinstance(init, tirx.BufferStore)
    require(stores, block, "its body and its init are not one store each")
    same = init.buffer.same_as(step.buffer) and structural_equal(init.indices, step.indices)
    require(same, block, "its init sets another element than its step adds to")
    zero = Analyzer().simplify(init.value)
    constant = isinstance(zero, (tirx.IntImm, tirx.FloatImm))
    require(constant and zero.value == 0, block, "its init is not 0")
    dtype = str(step.buffer.dtype)
    require(not has_one_bit(dtype), block, f"in {dtype}, which has one bit, sums are no sums")
    total = tirx.BufferLoad(step.buffer, step.indices)
    require(adds_to(step.value, total), block, f"its step does not add to `{step.buffer.name}`")
    check_axes(block, step)
    return step


def has_one_bit(dtype: str) -> bool:
    """Whether a number of this dtype is a truth value: bool, int1 and uint1 cannot hold 1 + 1."""
    return dtype == "bool" or tvm.DataType(dtype).bits == 1


def check_axes(block: SBlock, step: tirx.BufferStore) -> None:
    """Refuse unless the block has reduction axes, none of them indexes its output, and it declares what it writes."""
    spatial = axes_of(block, tirx.IterVar.DataPar)
    reducing = axes_of(block, tirx.IterVar.CommReduce)
    known = len(spatial) + len(reducing) == len(block.iter_vars)
    require(bool(reducing) and known, block, "its axes are not spatial ones and reductions")
    kept = not any(mentions(step.indices, axis) for axis in reducing)
    require(kept, block, "a reduction axis indexes its output")
    own = not block.alloc_buffers and not block.match_buffers and len(block.writes) == 1
    require(own, block, "it allocates or matches buffers, or declares more than one write")
    # TVM's lowering trusts the declaration when it decides where the buffer is allocated
    declared = block.writes[0]
    known = Analyzer()
    for axis in block.iter_vars:
        known.bind(axis.var, axis.dom)
    prove = known.can_prove
    inside = declared.source.same_as(step.buffer) and all(
        prove(r.min <= index) and prove(index < r.min + r.extent)
        for r, index in zip(declared.region, step.indices, strict=True)
    )
    require(inside, block, f"it does not declare that it writes `{step.buffer.name}` where it does")


def adds_to(value: Expr, total: TensorLoad) -> bool:
    """Whether `value` is `total` plus and minus terms that do not mention its buffer: value(t + c) = value(t) + c."""
    if isinstance(value, TensorLoad):
        return structural_equal(value, total)
    if not isinstance(value, (tirx.Add, tirx.Sub)):
        return False
    in_a, in_b = mentions(value.a, total.source), mentions(value.b, total.source)
    if in_a:
        return not in_b and adds_to(value.a, total)
    return isinstance(value, tirx.Add) and adds_to(value.b, total)


def axes_of(block: SBlock, kind: int) -> dict[Var, Range]:
    """The axes of one kind (IterVar.DataPar, IterVar.CommReduce), each with its range."""
    return {axis.var: axis.dom for axis in block.iter_vars if axis.iter_type == kind}


def check_reduction_loops(nest: Nest) -> None:
    """Refuse a reduction that several threads or lanes share: each would start from the bias."""
    summed = summed_values(nest.realize)
    for loop in nest.loops:
        serial = loop.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
        name = loop.loop_var.name
        alone = serial or not mentions(summed, loop.loop_var) or is_one(loop.extent)
        require(alone, nest.block, f"its reduction loop `{name}` does not run serially")


# --- the epilogue ---------------------------------------------------------------------------------


def check_epilogue(nest: Nest, axes: Mapping[Var, Expr], output: Var) -> None:
    """Refuse unless the block is elementwise: spatial axes, one output, no own buffers, in no pipeline.

    axes: each of its axes -> the same axis in the reduction.
    """
    block = nest.block
    spatial = all(axis.iter_type == tirx.IterVar.DataPar for axis in block.iter_vars)
    require(spatial, block, "its axes are not all spatial")
    alike = all(str(mine.ty) == str(other.ty) for mine, other in axes.items())
    require(alike, block, "its axes are of another integer type than the reduction's")
    own = not block.alloc_buffers and not block.match_buffers and block.init is None
    require(own, block, "it allocates or matches buffers, or has an init")
    one = [region.source for region in block.writes] == [output]
    require(one, block, f"it does not declare `{output.name}` as the only buffer it writes")
    require(not nest.is_staged, block, "it is a stage of a software pipeline")


# --- axes of another form -------------------------------------------------------------------------


def matched_axes(
    match_axes: Callable, read: Sequence, written: Sequence, epilogue: SBlock, reduction: SBlock
) -> dict[Var, Expr]:
    """Return what `match_axes` finds. If it refuses, try the same with axes of another form.

    An axis of a single value may be a variable in one block and a number in the other. And `transform_block_layout`
    makes one axis of two, or two of one. If `temp[vf // 6, vf % 6]` is written and `temp[wi, wj]` read, wi is vf // 6.
    """
    try:
        return match_axes(read, written, epilogue, reduction)
    except ScheduleError:
        (ours, read), (theirs, written) = _at_units(epilogue, read), _at_units(reduction, written)
        axes = _solved(read, written, ours, theirs)
        if axes is None:
            raise
    units = {axis.var: axis.dom.min for axis in epilogue.iter_vars if axis.var not in ours}
    return {axis.var: axes.get(axis.var, units.get(axis.var)) for axis in epilogue.iter_vars}


def _at_units(block: SBlock, indices: Sequence) -> tuple[dict[Var, Range], list[Expr]]:
    """The spatial axes of `block` with several values, and `indices` with every other axis replaced by its value."""
    ranges = axes_of(block, tirx.IterVar.DataPar)
    units = {var: dom.min for var, dom in ranges.items() if is_one(dom.extent)}
    wide = {var: dom for var, dom in ranges.items() if var not in units}
    return wide, [Analyzer().simplify(index) for index in substitute(list(indices), units)]


def _solved(read: list, written: list, ours: dict, theirs: dict) -> dict[Var, Expr] | None:
    """Express each axis of `ours` in the axes `theirs` so that `read` equals `written`; None if that is not proved."""
    prove = Analyzer()
    for var, dom in (ours | theirs).items():
        prove.bind(var, dom)
    pairs = [pair for pair in zip(read, written, strict=True) if not prove.can_prove_equal(*pair)]
    if not ours:
        return None if pairs else {}
    # TVM inverts only maps of axes that begin at 0, and no steps other than 1
    from_0 = {var: Range.from_min_extent(0, dom.extent) for var, dom in ours.items()}
    indices = substitute([one for one, _ in pairs], {var: var + ours[var].min for var in ours})
    found = detect_iter_map(indices, from_0, True, "bijective").indices
    steps = [tirx.abs(one.args[-1].scale) for one in found if one.args]
    alike = len(found) == len(pairs) and all(prove.can_prove_equal(step, 1) for step in steps)
    if not alike or not pairs:
        return None
    inverse = inverse_affine_iter_map(found, [other for _, other in pairs])
    axes = {v: prove.simplify(inverse[v] + ours[v].min) for v in ours if v in inverse}
    back = zip(substitute(read, axes), written, strict=True)
    same = len(axes) == len(ours) and all(prove.can_prove_equal(*pair) for pair in back)
    return axes if same and fills(list(axes.values()), theirs, list(ours.values())) else None


# --- the points that both visit -------------------------------------------------------------------


def check_domains(
    site: BlockSite, written: Sequence[Expr], indices: Sequence[Expr], value: Expr
) -> None:
    """Refuse unless both blocks visit every point of their domain once, and no two points share an element.

    written: the indices at which the reduction stores. indices, value: where the epilogue stores, and its value or
    addend, both in the reduction's axes.
    """
    reduction, epilogue = site.producer.block, site.consumer.block
    for nest in (site.producer, site.consumer):
        once = visits_each_point_once(nest.realize, nest.loops)
        require(once, nest.block, "its loops do not visit each point of its domain exactly once")
    ranges = axes_of(reduction, tirx.IterVar.DataPar)
    for block, stored in ((reduction, written), (epilogue, indices)):
        one_each = is_injective(stored, ranges)
        require(one_each, block, "two of its points may write the same element")
    fixed = [value, indices, epilogue.reads, epilogue.writes]
    for loop in site.consumer.loops[len(site.shared) :]:
        hidden = mentions(fixed, loop.loop_var)
        name = loop.loop_var.name
        require(not hidden, epilogue, f"it uses the loop variable `{name}` directly")


# --- memory ---------------------------------------------------------------------------------------


def check_memory(site: BlockSite, temp: Var, output: Var) -> None:
    """Refuse if buffers may share memory, or threads may see different memory: by names, pointers, strides, scopes."""
    block, sref, renamed = site.consumer.block, site.scope_sref, []
    while sref is not None:
        root, sref = sref.stmt, sref.parent
        renamed += [] if isinstance(root, tirx.For) else root.match_buffers
    names = [match.source.source for match in renamed]
    one_each = len(set(names)) == len(names) and not any(mentions(site.span, x) for x in names)
    require(one_each, block, "a block around it gives a buffer a second name, and both are used")
    require(not nodes(root, tirx.DeclBuffer), block, "its function gives a buffer a second name")
    anywhere = "a call or a pointer in the reduction, or before it, may reach any memory"
    require(not uses_pointers(site.span), block, anywhere)
    for buffer in (temp, output):
        apart = is_apart(buffer)
        require(apart, block, f"`{buffer.name}` has strides with which elements may overlap")
    shared = output.scope() in ("global", temp.scope())
    require(shared, block, f"`{output.name}` is in another kind of memory than the sum")


def is_apart(buffer: Var) -> bool:
    """Whether no two elements of `buffer` share memory: each stride is larger than what all smaller strides reach."""
    sizes = [*buffer.strides, *buffer.shape]
    if not buffer.strides or not all(isinstance(size, tirx.IntImm) for size in sizes):
        return not buffer.strides
    reach = 0
    for stride, extent in sorted(
        (int(s), int(n)) for s, n in zip(buffer.strides, buffer.shape, strict=True)
    ):
        if extent > 1 and stride <= reach:
            return False
        reach += stride * (extent - 1)
    return True


# --- step 2: transformation -----------------------------------------------------------------------


def fused_block(fusion) -> SBlock:
    """Return the reduction with `output` in place of `temp`, and with the addend in place of the init's 0.

    fusion: a Fusion of the chapter's file. The block keeps the reduction's name, axes and annotations. reads: those of
    the epilogue, then those of the reduction, without `temp`, each buffer once (`merge_regions`). writes: those of the
    epilogue. All are in the reduction's axes.
    """
    reduction, epilogue = fusion.reduction, fusion.epilogue
    total = tirx.BufferLoad(fusion.output, fusion.indices)
    step = replace_loads(reduction.body.value, fusion.temp, total)
    reads = [substitute_region(region, fusion.axes) for region in epilogue.reads]
    reads = [
        region for region in [*reads, *reduction.reads] if not region.source.same_as(fusion.temp)
    ]
    return with_fields(
        reduction,
        reads=merge_regions(reads),
        writes=[substitute_region(region, fusion.axes) for region in epilogue.writes],
        init=tirx.BufferStore(fusion.output, simplified(fusion.addend), fusion.indices),
        body=tirx.BufferStore(fusion.output, step, fusion.indices),
    )


def simplified(addend: Expr) -> Expr:
    """Simplify an integer addend, as the built-in does. For floats, TVM would make 0.0 of x * 0.0, even if x is NaN."""
    exact = "int" in str(addend.ty.dtype)
    return Analyzer().simplify(addend) if exact else addend
