"""What chapter 7 provides: the match of two blocks, helpers for exercises, all conditions except `check_between`.

Each condition raises a ScheduleError or passes. It checks one thing only, so that you can remove it and see which case
goes wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from chapters.ch06_reduction_epilogue.given import (
    check_axes,
    fused_block,
    has_one_bit,
    matched_axes,
    simplified,
)
from chapters.kit.ir.block_flags import replace_and_refresh_flags
from chapters.kit.ir.block_site import BlockSite, Nest, block_paths, locate
from chapters.kit.ir.rebuild import rebuild
from chapters.kit.ir.refuse import require
from chapters.kit.ir.tensor_ir import (
    count,
    is_pure,
    loads,
    mentions,
    nodes,
    replace_loads,
    substitute,
    summed_values,
    with_fields,
    with_fresh_lets,
)
from chapters.runner.earlier import earlier

ch6 = earlier(6)


@dataclass(frozen=True)
class Way:
    """How an epilogue was fused. how: "init", "scaled" or "last step". why: the reason, so that one can check it."""

    how: str
    why: str

    def __str__(self) -> str:
        return f"{self.how}: {self.why}"


REASONS = {
    "init": "`{}` combines the sum with values that do not change along it",
    "scaled": "`{}` multiplies the sum, so each step is multiplied instead",
}

# --- step 1: match the two blocks -----------------------------------------------------------------


@dataclass(frozen=True)
class MatchedPair:
    """A reduction and its epilogue.

    site: the places of the two blocks. step: the reduction's store. axes: each axis of the epilogue -> the same axis in
    the reduction. value, indices: what the epilogue stores and where, in the reduction's axes.
    """

    site: BlockSite
    step: tirx.BufferStore
    axes: dict[Var, Expr]
    value: Expr
    indices: list[Expr]

    @property
    def reduction(self) -> SBlock:
        return self.site.producer.block

    @property
    def epilogue(self) -> SBlock:
        return self.site.consumer.block

    @property
    def temp(self) -> Var:
        return self.step.buffer

    @property
    def total(self) -> TensorLoad:
        """The element of `temp` that the reduction writes and the epilogue reads."""
        return tirx.BufferLoad(self.temp, self.step.indices)

    @property
    def output(self) -> Var:
        return self.epilogue.body.buffer

    def fusion(self, addend: Expr):
        """The same facts as chapter 6's Fusion."""
        return ch6.Fusion(self.site, self.temp, self.axes, self.output, self.indices, addend)


def match(sch: Schedule, reduction: SBlockRV, epilogue: SBlockRV) -> MatchedPair:
    """Return the pair of blocks. Raises ScheduleError unless each point of the epilogue reads exactly its own sum."""
    site = locate(sch, reduction, epilogue)
    block, other = site.producer.block, site.consumer.block
    step = reduction_step(site.producer)
    load = epilogue_load(other, step.buffer)
    axes = matched_axes(ch6.match_axes, load.indices, step.indices, other, block)
    value, indices = substitute([other.body.value, other.body.indices], axes)
    own = tirx.BufferLoad(step.buffer, step.indices)  # perhaps written in another form
    return MatchedPair(site, step, axes, replace_loads(value, step.buffer, own), list(indices))


def reduction_step(nest: Nest) -> tirx.BufferStore:
    """The one store of a reduction's body. Refuses if a reduction axis selects the element that it writes."""
    block, step, init = nest.block, nest.block.body, nest.block.init
    require(isinstance(step, tirx.BufferStore), block, "its body is not one store")
    require(is_pure(step.value), block, "its step has side effects or reads through a pointer")
    starts = init is None or _starts(init, step)
    require(starts, block, "its init is not one store to the element of its step")
    check_axes(block, step)
    ch6.check_reduction_loops(nest)
    return step


def _starts(init, step: tirx.BufferStore) -> bool:
    if not isinstance(init, tirx.BufferStore) or mentions(init.value, step.buffer):
        return False
    same = init.buffer.same_as(step.buffer) and structural_equal(init.indices, step.indices)
    return same and is_pure(init.value)


def epilogue_load(block: SBlock, temp: Var) -> TensorLoad:
    """The load of `temp` in an epilogue. Refuses unless it is one pure store that reads one element of `temp`."""
    store = block.body
    require(isinstance(store, tirx.BufferStore), block, "its body is not one store")
    pure = is_pure(store.value) and is_pure(store.indices)
    require(pure, block, "it has side effects or reads through a pointer")
    read = loads(store.value, temp)
    require(bool(read), block, f"it does not read `{temp.name}`")
    one = len(read) == count(store, temp) and all(structural_equal(read[0], x) for x in read)
    require(one, block, f"it uses more than one element of `{temp.name}`")
    return read[0]


# --- step 2: helpers of the algebra ---------------------------------------------------------------


def operation(step: Expr, total: TensorLoad) -> type | None:
    """Return the ⊕ of a step `total ⊕ x`: Add (for `total - x`, too), Mul, Max or Min. None for any other step.

    x must not mention the buffer of `total`. The step may be nested: `a + (total - b)` is a sum.
    """
    if isinstance(step, (tirx.Add, tirx.Sub)):
        return tirx.Add if _sign(step, total) == 1 else None
    known = isinstance(step, (tirx.Mul, tirx.Max, tirx.Min)) and grouped(step, total, type(step))
    return type(step) if known else None


def _sign(value: Expr, total: TensorLoad) -> int:
    """The sign of `total`, 1 or -1, if `value` is a sum of it and of terms that do not mention its buffer; else 0."""
    if isinstance(value, TensorLoad):
        return int(structural_equal(value, total))
    if not isinstance(value, (tirx.Add, tirx.Sub)):
        return 0
    in_a, in_b = mentions(value.a, total.source), mentions(value.b, total.source)
    if in_a:
        return 0 if in_b else _sign(value.a, total)
    return _sign(value.b, total) * (1 if isinstance(value, tirx.Add) else -1)


def grouped(value: Expr, total: TensorLoad, op: type) -> bool:
    """Whether `value` combines `total`, by `op` alone, with operands that do not mention its buffer."""
    if isinstance(value, TensorLoad):
        return structural_equal(value, total)
    if not isinstance(value, op):
        return False
    inside, beside = (value.a, value.b) if mentions(value.a, total.source) else (value.b, value.a)
    return not mentions(beside, total.source) and grouped(inside, total, op)


def is_number(value: Expr, number: int) -> bool:
    """Whether `value` is provably the constant `number`."""
    value = Analyzer().simplify(value)
    return isinstance(value, (tirx.IntImm, tirx.FloatImm)) and value.value == number


# --- step 3: helpers of the last step -------------------------------------------------------------


def reduction_loops(nest: Nest) -> list[tirx.For]:
    """The loops that drive a reduction axis, except those of one iteration. Refuses if a spatial axis needs one too."""
    block = nest.block
    summed = summed_values(nest.realize)
    values = zip(block.iter_vars, nest.realize.iter_values, strict=True)
    spatial = [value for axis, value in values if axis.iter_type == tirx.IterVar.DataPar]
    found = [loop for loop in nest.loops if mentions(summed, loop.loop_var)]
    for loop in found:
        alone = not mentions(spatial, loop.loop_var)
        name = loop.loop_var.name
        require(alone, block, f"its loop `{name}` drives a spatial axis and a reduction at once")
    return [loop for loop in found if not Analyzer().can_prove_equal(loop.extent, 1)]


def conjuncts(predicate: Expr) -> list[Expr]:
    """The parts of `a and b and c`; [] for True."""
    if isinstance(predicate, tirx.And):
        return conjuncts(predicate.a) + conjuncts(predicate.b)
    return [] if isinstance(predicate, tirx.IntImm) and predicate.value else [predicate]


# --- conditions of every way (GUARD) --------------------------------------------------------------


def check_epilogue(sch: Schedule, pair: MatchedPair) -> None:
    """Refuse an epilogue that is not a plain elementwise block, and loops that become stages of a pipeline."""
    ch6.check_epilogue(pair.site.consumer, pair.axes, pair.output)
    staged = pair.site.producer.is_staged
    require(not staged, pair.reduction, "it is a stage of a software pipeline")


def check_points(sch: Schedule, pair: MatchedPair) -> None:
    """Refuse unless both blocks visit each point once, when its sum is done, and two points never share an element."""
    ch6.check_domains(pair.site, pair.step.indices, pair.indices, pair.value)
    ch6.check_shared_loops(pair.site, pair.step.indices)


def check_some_step(sch: Schedule, pair: MatchedPair) -> None:
    """Refuse a reduction without init that may have no step at all: there would be no last one."""
    if pair.reduction.init is not None:
        return
    for loop in reduction_loops(pair.site.producer):
        runs = Analyzer().can_prove(loop.extent >= 1)
        require(runs, pair.reduction, f"its loop `{loop.loop_var.name}` may have no iteration")


def others_between(site: BlockSite) -> list[SBlock]:
    """The blocks of `site.span` except the reduction and the epilogue."""
    found = [path[-1].block for stmt in site.span for path in block_paths(stmt)]
    two = (site.producer.block, site.consumer.block)
    return [block for block in found if not any(block.same_as(one) for one in two)]


def check_control(sch: Schedule, pair: MatchedPair) -> None:
    """Refuse if the output decides which iterations run: a loop's bounds, a predicate or an axis in between reads it.

    `check_between` looks at the reads and writes of the blocks themselves.
    """
    blocks = [pair.reduction, pair.epilogue, *others_between(pair.site)]
    inside = sum(count(block, pair.output) for block in blocks)
    decides = count(pair.site.span, pair.output) > inside
    name = pair.output.name
    require(not decides, pair.epilogue, f"`{name}` decides which iterations run before it")


def check_own_element(sch: Schedule, pair: MatchedPair) -> None:
    """Refuse an epilogue that reads output elements other than the one it writes: the order would matter."""
    here, read = tirx.BufferLoad(pair.output, pair.indices), loads(pair.value, pair.output)
    name = pair.output.name
    own = all(structural_equal(load, here) for load in read)
    require(own, pair.epilogue, f"it reads another element of `{name}` than it writes")
    plain = count(pair.epilogue.body, pair.output) == 1 + len(read)
    require(plain, pair.epilogue, f"`{name}` decides where it writes")


def check_memory(sch: Schedule, pair: MatchedPair) -> None:
    """Refuse if memory has two names, or threads see different memory."""
    ch6.check_memory(pair.site, pair.temp, pair.output)
    for load in nodes(pair.value, TensorLoad):
        buffer = load.source
        own = buffer.same_as(pair.temp) or buffer.same_as(pair.output)
        seen = own or buffer.scope() in ("", "global")
        require(seen, pair.epilogue, f"`{buffer.name}` is in memory that threads do not share")


# --- conditions of the ways that start from the epilogue (GUARD_OF_INIT) --------------------------


def check_sums_unseen(pair: MatchedPair, start: Expr, reassociate: bool) -> None:
    """Refuse if another block uses the sums, which no longer exist after a fusion into the init."""
    ch6.check_bystanders(pair.fusion(start))


def check_rounding(pair: MatchedPair, start: Expr, reassociate: bool) -> None:
    """Refuse to change the order of a floating-point reduction if the caller forbids it, or the dtype is too coarse.

    Integers are exact in any order, unless a sum overflows on the way, which TVM leaves undefined. 16-bit floats have
    11 bits or fewer: a sum that starts from its bias may lose every step, or overflow. Of two addends, one may cancel
    the other: `(t + c) - c` rounds t, and a sum that starts from `c - c` does not. max and min do not round, but
    their results for a NaN, or for 0 and -0, depend on the order.
    """
    dtype = str(pair.temp.dtype)
    if dtype.startswith(("int", "uint")):
        return
    compares = isinstance(pair.step.value, (tirx.Max, tirx.Min))
    require(not compares, pair.reduction, "the order of its steps decides what a NaN does")
    wide = dtype in ("float32", "float64")
    require(wide, pair.reduction, f"in {dtype} the order of its steps changes the result too much")
    require(reassociate, pair.reduction, "the order of its floating-point steps must stay")
    begun = nodes(pair.step.value, tirx.Add) and not is_number(pair.reduction.init.value, 0)
    cancels = begun or len(nodes(pair.value, (tirx.Add, tirx.Sub))) > 1
    require(
        not cancels, pair.epilogue, "one addend may cancel another, and with it what it rounded"
    )


def check_dtypes(pair: MatchedPair) -> None:
    """Refuse a reduction that has no init to start from, or whose partial results the output cannot hold."""
    require(pair.reduction.init is not None, pair.reduction, "it has no init")
    dtype, output = str(pair.temp.dtype), pair.output
    same = str(output.dtype) == dtype
    require(same, pair.epilogue, f"`{output.name}` has another dtype than `{pair.temp.name}`")
    # TVM leaves unsigned overflow from 32 bits up undefined (0 - c becomes 0), and raises on 0 - 3 in any width.
    require(not has_one_bit(dtype), pair.reduction, f"in {dtype} sums hold only one bit")
    below = dtype.startswith("uint") and nodes([pair.value, pair.step.value], tirx.Sub)
    require(not below, pair.epilogue, f"a difference may start below 0, where {dtype} overflows")


# --- step 4: the changes --------------------------------------------------------------------------


def start_from(sch: Schedule, pair: MatchedPair, start: Expr, step: Expr) -> None:
    """Make the two blocks one that starts from `start` and does `step`, which still names `pair.total`."""
    total = tirx.BufferLoad(pair.output, pair.indices)
    fusion = pair.fusion(start)
    init = with_fresh_lets(simplified(start))  # the step may hold the same T.Let
    fused = with_fields(
        fused_block(fusion),
        init=tirx.BufferStore(pair.output, init, pair.indices),
        body=tirx.BufferStore(pair.output, replace_loads(step, pair.temp, total), pair.indices),
    )
    scope = ch6.new_scope(fusion, fused)
    reuse = {pair.site.scope: scope, pair.reduction: fused}
    sch.state.replace(pair.site.scope_sref, scope, reuse)


def check_lanes(nest: Nest) -> None:
    """Refuse a vectorized loop around whole sums, because in this release all its lanes share one element of `temp`."""
    wide = reduction_loops(nest)
    for loop in nest.loops:
        if any(loop.same_as(other) for other in wide):
            return
        lanes = loop.kind == tirx.ForKind.VECTORIZED
        name = loop.loop_var.name
        require(not lanes, nest.block, f"its loop `{name}` is vectorized, and around whole sums")


def run_beside(sch: Schedule, pair: MatchedPair, when: Expr) -> None:
    """Move the epilogue behind the reduction, into its innermost loop, to run where the predicate `when` holds."""
    site = pair.site
    axes = [axis.var for axis in pair.reduction.iter_vars]
    values = dict(zip(axes, site.producer.realize.iter_values, strict=True))
    where = [substitute(pair.axes[axis.var], values) for axis in pair.epilogue.iter_vars]
    moved = SBlockRealize(where, when, pair.epilogue)

    def put(realize: SBlockRealize) -> list[SBlockRealize]:
        if realize.block.same_as(pair.epilogue):
            return []
        return [realize, moved] if realize.block.same_as(pair.reduction) else [realize]

    scope = with_fields(site.scope, body=rebuild(site.scope.body, put))
    replace_and_refresh_flags(sch, site.scope_sref, scope)
