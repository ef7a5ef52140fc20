"""Chapter 13: a schedule primitive that makes one loop of two reductions, the second of which reads the first.

    fuse_reductions(sch, first, second)

The lesson says what it must do, and what it must refuse.
"""

# BEGIN exercise 13.1: the primitive, from the empty file
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from tvm import tirx
from tvm.ir import Call, Expr, TensorLoad, Var
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir.analysis import get_sblock_access_region
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import (
    Add,
    Bind,
    BufferLoad,
    BufferStore,
    For,
    ForKind,
    IterVar,
    Max,
    Mul,
    SeqStmt,
    Stmt,
    Sub,
    const,
    exp,
    if_then_else,
    infinity,
)
from tvm_ffi import structural_equal

from chapters.ch06_reduction_epilogue.given import (
    axes_of,
    check_axes,
    check_memory,
    check_reduction_loops,
)
from chapters.ch07_when_fusion_is_sound.given import is_number, others_between
from chapters.kit.ir.block_domain import is_injective, same_range, visits_each_point_once
from chapters.kit.ir.block_site import BlockSite, locate
from chapters.kit.ir.rebuild import rebuild
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
)


@dataclass(frozen=True)
class Maximum:
    """A running maximum: each step makes `largest` the larger of itself and `x`.

    head: the statements of a step that keep it, in the form of `running_maximum`. tail: the sums that follow it, each
    as it was fused. scale: what a sum so far is multiplied by in a step. weight: exp(x - the new maximum).
    """

    largest: TensorLoad
    x: Expr
    head: list[Stmt]
    tail: list[Stmt]

    @property
    def scale(self) -> Var:
        return self.head[3].var

    @property
    def weight(self) -> Var:
        return self.head[4].var


@dataclass(frozen=True)
class Fusion:
    """What the analysis has found: `second` adds `exp(x - largest) * factor` to `total`.

    total and factor (None for 1) are in the axes of `first`; extra: the axes that only `second` has.
    """

    site: BlockSite
    maximum: Maximum
    total: TensorLoad
    factor: Expr | None
    extra: list[IterVar]

    @property
    def first(self) -> SBlock:
        return self.site.producer.block

    @property
    def second(self) -> SBlock:
        return self.site.consumer.block


def running_maximum(largest: TensorLoad, x: Expr) -> list[Stmt]:
    """The statements of a step: x, the maximum before and after it, scale, weight; and the store of the maximum.

    Where the maximum stays, the scale is 1, even if the maximum is -inf. An x of -inf has weight 0 at any maximum.
    """
    dtype = str(largest.source.dtype)
    names = ("x", "before", "after", "scale", "weight")
    value, before, after, scale, weight = (tirx.Var(name, dtype) for name in names)
    nothing = value == -infinity(dtype)
    values = {
        value: x,
        before: largest,
        after: Max(before, value),
        scale: if_then_else(before == after, const(1, dtype), exp(before - after)),
        weight: if_then_else(nothing, const(0, dtype), exp(value - after)),
    }
    store = BufferStore(largest.source, after, largest.indices)
    return [*(Bind(var, value) for var, value in values.items()), store]


# --- analysis -------------------------------------------------------------------------------------


def analyse(site: BlockSite, maximum: Maximum) -> Fusion:
    """Return what the fusion needs. Raises ScheduleError unless it is proved to compute the same."""
    block = site.consumer.block
    total, addend = find_sum(block)
    load, x, factor = split_addend(block, addend, maximum.largest.source)
    axes = match_axes(site, [*load.indices, x], [*maximum.largest.indices, maximum.x])
    extra = [axis for axis in block.iter_vars if axis.var not in axes]
    fusion = Fusion(site, maximum, substitute(total, axes), substitute(factor, axes), extra)
    check_points(fusion, total)
    check_bystanders(fusion)
    check_memory(site, maximum.largest.source, total.source)
    check_numbers(fusion)
    return fusion


def find_maximum(block: SBlock) -> Maximum:
    """The running maximum of a block: a plain max reduction, or one that `fuse_reductions` has made."""
    require(block.init is not None, block, "it has no init, so it is no whole reduction")
    step, init = block.body, block.init
    if isinstance(step, SeqStmt) and all(isinstance(one, Bind) for one in step.seq[:5]):
        x, largest = (one.value for one in step.seq[:2])
        known = len(step.seq) > 6 and isinstance(largest, TensorLoad)
        known = known and structural_equal(
            SeqStmt(running_maximum(largest, x)), SeqStmt(step.seq[:6])
        )
        require(known, block, "its step is neither one store nor one that this primitive has made")
        return Maximum(largest, x, list(step.seq[:6]), list(step.seq[6:]))
    require(isinstance(step, BufferStore), block, "its body is not one store")
    largest = BufferLoad(step.buffer, step.indices)
    require(isinstance(step.value, Max), block, "it does not look for a maximum")
    # of NaN and a number, TVM's max is the second, so max(x, m) is something else
    known = structural_equal(step.value.a, largest)
    require(known, block, "its step is not the larger of the maximum and an element, in this order")
    x = step.value.b
    require(not mentions(x, step.buffer), block, "its element depends on the maximum so far")
    require(is_pure(x), block, "its element has side effects or reads through a pointer")
    require(starts(init, step), block, "its init is not one store to the element of its step")
    check_axes(block, step)
    return Maximum(largest, x, running_maximum(largest, x), [])


def find_sum(block: SBlock) -> tuple[TensorLoad, Expr]:
    """The element that a sum adds to, and the addend. Refuses anything that is not a plain sum from 0."""
    step, init = block.body, block.init
    require(init is not None, block, "it has no init, so it is no whole reduction")
    require(isinstance(step, BufferStore), block, "its body is not one store")
    require(starts(init, step), block, "its init is not one store to the element of its step")
    require(
        is_number(init.value, 0),
        block,
        "it does not start from 0, and 0 alone is rescaled to itself",
    )
    total = BufferLoad(step.buffer, step.indices)
    require(isinstance(step.value, Add), block, "it is not a sum")
    sides = (step.value.a, step.value.b)
    addend = next((b for a, b in (sides, sides[::-1]) if structural_equal(a, total)), None)
    require(addend is not None, block, "its step does not add to one element")
    require(not mentions(addend, step.buffer), block, "its addend depends on the sum so far")
    require(is_pure(addend), block, "its addend has side effects or reads through a pointer")
    check_axes(block, step)
    return total, addend


def starts(init: Stmt, step: BufferStore) -> bool:
    """Whether `init` is one pure store to the element of `step`."""
    if not isinstance(init, BufferStore) or not init.buffer.same_as(step.buffer):
        return False
    return structural_equal(init.indices, step.indices) and is_pure(init.value)


def split_addend(block: SBlock, addend: Expr, largest: Var) -> tuple[TensorLoad, Expr, Expr | None]:
    """The load of the maximum, x and y (None for 1) of an addend `exp(x - largest[…]) * y`, factors in any order."""
    factors = product_of(addend)
    weights = [factor for factor in factors if mentions(factor, largest)]
    other = f"its addend depends on `{largest.name}` in another way than by one factor exp(x - {largest.name})"
    weight = weights[0] if len(weights) == 1 else None
    require(isinstance(weight, Call) and weight.op.name == "tirx.exp", block, other)
    difference = weight.args[0]
    known = isinstance(difference, Sub) and isinstance(difference.b, TensorLoad)
    known = known and difference.b.source.same_as(largest) and count(difference, largest) == 1
    require(known, block, other)
    rest = [factor for factor in factors if not factor.same_as(weight)]
    return difference.b, difference.a, reduce(Mul, rest) if rest else None


def product_of(value: Expr) -> list[Expr]:
    """The factors of a product, in order."""
    return product_of(value.a) + product_of(value.b) if isinstance(value, Mul) else [value]


def match_axes(site: BlockSite, read: Sequence[Expr], kept: Sequence[Expr]) -> dict[Var, Expr]:
    """What each axis of the second block is in the first; axes that only the second has are left out.

    read: where the second block reads the maximum, and its x. kept: the same of the first block. Both must be equal
    with the axes replaced. A reduction axis that x does not mention is matched by its position.
    """
    first, second = site.producer.block, site.consumer.block
    ours, theirs = ({axis.var: axis for axis in block.iter_vars} for block in (second, first))
    pairs = zip(variables_of(read), variables_of(kept), strict=False)
    axes = {mine: other for mine, other in pairs if mine in ours and other in theirs}
    same = structural_equal(substitute(list(read), axes), list(kept))
    require(same, second, "its exponent is not the element of the maximum minus that maximum")
    steps, others = (axes_of(block, IterVar.CommReduce) for block in (second, first))
    left = [var for var in steps if var not in axes]
    unmatched = [var for var in others if var not in axes.values()]
    require(len(left) == len(unmatched), second, "it reduces over other axes than the maximum")
    axes |= zip(left, unmatched, strict=True)
    require(len(set(axes.values())) == len(axes), second, "two of its axes are one of the maximum")
    for mine, other in axes.items():
        kinds = ours[mine].iter_type == theirs[other].iter_type
        require(kinds, second, "it reduces over other axes than the maximum")
        alike = same_range(ours[mine].dom, theirs[other].dom) and str(mine.ty) == str(other.ty)
        require(alike, second, f"its axis `{mine.name}` has another range than the maximum's")
    return axes


def check_points(fusion: Fusion, total: TensorLoad) -> None:
    """Refuse unless both visit each point once, no two points share an element, and the steps run one by one."""
    site, largest = fusion.site, fusion.maximum.largest
    for nest, stored in ((site.producer, largest.indices), (site.consumer, total.indices)):
        once = visits_each_point_once(nest.realize, nest.loops)
        require(once, nest.block, "its loops do not visit each point of its domain exactly once")
        one_each = is_injective(stored, axes_of(nest.block, IterVar.DataPar))
        require(one_each, nest.block, "two of its points may write the same element")
        require(not nest.is_staged, nest.block, "it is a stage of a software pipeline")
    for loop in site.producer.loops:
        scalar = loop.kind not in (ForKind.VECTORIZED, ForKind.THREAD_BINDING)
        name = loop.loop_var.name
        require(scalar, fusion.first, f"its loop `{name}` is vectorized or bound to threads")
    for loop in site.consumer.loops[len(site.shared) :]:
        hidden = mentions(fusion.second, loop.loop_var)
        name = loop.loop_var.name
        require(not hidden, fusion.second, f"it uses the loop variable `{name}` directly")
    check_reduction_loops(site.producer)
    check_shared_loops(fusion)


def check_shared_loops(fusion: Fusion) -> None:
    """Refuse unless each iteration of the loops around both finishes the maxima that the sums of it read."""
    site, second, largest = fusion.site, fusion.second, fusion.maximum.largest
    first, last = site.producer, site.consumer
    for loop in site.shared:
        split = mentions(summed_values(first.realize), loop.loop_var) and not is_one(loop.extent)
        name = loop.loop_var.name
        require(not split, second, f"it runs between steps of the maximum, in the loop `{name}`")
    there = (first.realize, first.loops), largest.indices
    for load in loads(second.body, largest.source) if site.shared else ():
        here = (last.realize, last.loops), load.indices
        late = "it may read a maximum that a later iteration of the shared loops finds"
        require(covers(site.shared, *there, *here), second, late)


def check_bystanders(fusion: Fusion) -> None:
    """Refuse if a block between the two would see or cause other values: the sums are now made before it."""
    site, second = fusion.site, fusion.second
    largest, output = fusion.maximum.largest.source, fusion.total.source
    alone = count(site.span, output) == count(second, output)
    require(alone, second, f"`{output.name}` is used before it, after the first reduction began")
    last = site.consumer
    summed = [one for one in last.loops if mentions(summed_values(last.realize), one.loop_var)]
    for realize in nodes(summed[:1], SBlockRealize):
        sees = mentions(realize, output) and not realize.same_as(last.realize)
        name = realize.block.name_hint
        require(not sees, second, f"block `{name}` uses `{output.name}` in the loops of the sum")
    for block in others_between(site):
        kept = not may_write(block, largest)
        require(kept, second, f"block `{block.name_hint}` may write `{largest.name}` before it")
    for buffer in {load.source for load in nodes(fusion.factor, TensorLoad)} | {
        load.source for load in nodes(fusion.maximum.x, TensorLoad)
    }:
        written = may_write(site.span, buffer)
        require(not written, second, f"`{buffer.name}` may be written before it")


def check_numbers(fusion: Fusion) -> None:
    """Refuse dtypes in which a sum on the way to the final maximum may overflow, or lose what it has."""
    largest, total = fusion.maximum.largest.source, fusion.total.source
    wide = str(total.dtype) in ("float32", "float64")
    require(wide, fusion.second, f"in {total.dtype} a sum that is rescaled may overflow on the way")
    same = str(total.dtype) == str(largest.dtype)
    require(same, fusion.second, f"`{total.name}` has another dtype than `{largest.name}`")


# --- transformation -------------------------------------------------------------------------------


def fused_block(fusion: Fusion) -> SBlock:
    """The first block, whose steps also rescale `total` and add to it. It keeps its name, axes and annotations."""
    first, maximum, total = fusion.first, fusion.maximum, fusion.total
    addend = maximum.weight if fusion.factor is None else maximum.weight * fusion.factor
    update = BufferStore(total.source, total * maximum.scale + addend, total.indices)
    start = BufferStore(total.source, const(0, str(total.source.dtype)), total.indices)
    init = first.init.seq if isinstance(first.init, SeqStmt) else [first.init]
    init = SeqStmt([*init, over(fusion.extra, start)])
    body = SeqStmt([*maximum.head, *maximum.tail, over(fusion.extra, update)])
    return declared(with_fields(first, init=init, body=body))


def declared(block: SBlock) -> SBlock:
    """`block` with the regions that it reads and writes; a reduction does not declare that it reads what it writes."""
    buffers = {v: v for v in nodes([block.body, block.init], Var) if tirx.is_buffer_var(v)}
    reads, writes, _ = get_sblock_access_region(block, buffers)
    kept = {region.source for region in writes}
    return with_fields(block, reads=[r for r in reads if r.source not in kept], writes=writes)


def over(axes: Sequence[IterVar], store: BufferStore) -> Stmt:
    """`store`, in a loop over each of `axes`."""
    inner = {axis.var: tirx.Var(axis.var.name, axis.var.ty) for axis in axes}
    stmt = substitute(store, inner)
    for axis in reversed(axes):
        stmt = For(inner[axis.var], axis.dom.min, axis.dom.extent, ForKind.SERIAL, stmt)
    return stmt


# --- substitution ---------------------------------------------------------------------------------


def substitute_blocks(sch: Schedule, site: BlockSite, fused: SBlock) -> None:
    """Put `fused` in the place of the first block, and remove the second with its loops."""
    first, second = site.producer.block, site.consumer.block

    def put(realize: SBlockRealize) -> list[SBlockRealize]:
        if realize.block.same_as(second):
            return []
        same = realize.block.same_as(first)
        return [SBlockRealize(realize.iter_values, realize.predicate, fused) if same else realize]

    scope = with_fields(site.scope, body=rebuild(site.scope.body, put))
    sch.state.replace(site.scope_sref, scope, {site.scope: scope, first: fused})


def fuse_reductions(sch: Schedule, first: SBlockRV | str, second: SBlockRV | str) -> None:
    """Let the loop of `first`, a maximum, also make the sum of `second`, and remove `second` and its loops.

    Blocks are given by name or by handle. `first`: `m[…] = max(m[…], x)`, or what an earlier call has made of it.
    `second`: a sum from 0 over the same axes, whose steps add `exp(x - m[…])`, or that times factors without `m`. It
    may have further spatial axes. `sch` changes in place; the handle of `first` and those of its loops stay valid.
    Sums are reassociated. A sum over elements that are all -inf is 0 instead of NaN.

    Raises tvm.s_tir.ScheduleError, and leaves `sch` as it was, unless the result is proved to be the same.
    """
    site = locate(sch, *(sch.get_sblock(b) if isinstance(b, str) else b for b in (first, second)))
    fusion = analyse(site, find_maximum(site.producer.block))
    substitute_blocks(sch, site, fused_block(fusion))


# END exercise 13.1
