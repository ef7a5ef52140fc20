"""Chapter 7: fuse an epilogue into its reduction in the way that can be proved, or refuse.

With `t ⊕ x` for a step of the reduction and `f` for the epilogue, `fuse_epilogue`, at the end, tries three ways:

    init        f(t ⊕ x) = f(t) ⊕ x          start from f(init), keep the step
    scaled      f(t + x) = f(t) + s * x      start from f(init), scale the step by s
    last step   any f                        keep the sum, apply f to it when its last step has been done

The first two change the order of the arithmetic, the third does not. Each is
taken only where its conditions are proved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr, TensorLoad, Var
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer
from tvm.tirx import (
    EQ,
    Add,
    And,
    BufferLoad,
    BufferStore,
    FloatImm,
    ForKind,
    IntImm,
    IterVar,
    Max,
    Min,
    Mul,
    Sub,
    const,
)
from tvm_ffi import structural_equal

from chapters.toolkit.cases.hard_cases import Case
from chapters.toolkit.earlier import earlier
from chapters.toolkit.ir.block_flags import replace_and_refresh_flags
from chapters.toolkit.ir.block_site import Nest, Site, locate
from chapters.toolkit.ir.rebuild import rebuild
from chapters.toolkit.ir.refuse import require
from chapters.toolkit.ir.tensor_ir import (
    count,
    is_pure,
    loads,
    may_write,
    mentions,
    nodes,
    replace_loads,
    substitute,
    with_fields,
)

ch6 = earlier(6)


@dataclass(frozen=True)
class Way:
    """How an epilogue was fused. how: "init", "scaled" or "last step". why: a sentence a reader can check."""

    how: str
    why: str

    def __str__(self) -> str:
        return f"{self.how}: {self.why}"


@dataclass(frozen=True)
class Pair:
    """A reduction, its epilogue, and what each axis of the second is in the first.

    step: the reduction's store. value, indices: what the epilogue stores and where, in the reduction's axes.
    """

    site: Site
    step: BufferStore
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
        """The element of `temp` that the reduction makes and the epilogue reads."""
        return BufferLoad(self.temp, self.step.indices)

    @property
    def output(self) -> Var:
        return self.epilogue.body.buffer

    def fusion(self, addend: Expr):
        """The same facts in chapter 6's words."""
        return ch6.Fusion(self.site, self.temp, self.axes, self.output, self.indices, addend)


# --- step 1: match the two blocks -----------------------------------------------------------------


def match(sch: Schedule, reduction: SBlockRV, epilogue: SBlockRV) -> Pair:
    """The pair of blocks. Raises ScheduleError unless each point of the epilogue reads the one sum it stands for."""
    site = locate(sch, reduction, epilogue)
    block, other = site.producer.block, site.consumer.block
    step = reduction_step(site.producer)
    load = epilogue_load(other, step.buffer)
    axes = ch6.match_axes(load.indices, step.indices, other, block)
    value, indices = substitute([other.body.value, other.body.indices], axes)
    return Pair(site, step, axes, value, list(indices))


def reduction_step(nest: Nest) -> BufferStore:
    """The one store of a reduction's body. Refuses unless its reduction axes do not choose the element it writes."""
    block, step, init = nest.block, nest.block.body, nest.block.init
    require(isinstance(step, BufferStore), block, "its body is not one store")
    require(is_pure(step.value), block, "its step has side effects or reads through a pointer")
    require(
        init is None or _starts(init, step),
        block,
        "its init is not one store to the element of its step",
    )
    kinds = {axis.var: axis.iter_type for axis in block.iter_vars}
    reducing = {axis for axis, kind in kinds.items() if kind == IterVar.CommReduce}
    known = set(kinds.values()) <= {IterVar.DataPar, IterVar.CommReduce}
    require(bool(reducing) and known, block, "its axes are not spatial ones and reductions")
    kept = not any(mentions(step.indices, axis) for axis in reducing)
    require(kept, block, "a reduction axis indexes its output")
    own = not block.alloc_buffers and not block.match_buffers and len(block.writes) == 1
    require(own, block, "it allocates or matches buffers, or declares more than one write")
    ch6.check_reduction_loops(nest, reducing)
    return step


def _starts(init, step: BufferStore) -> bool:
    if not isinstance(init, BufferStore) or mentions(init.value, step.buffer):
        return False
    same = init.buffer.same_as(step.buffer) and structural_equal(init.indices, step.indices)
    return same and is_pure(init.value)


def epilogue_load(block: SBlock, temp: Var) -> TensorLoad:
    """The load of `temp` in an epilogue. Refuses unless it is one pure store that reads one element of `temp`."""
    store = block.body
    require(isinstance(store, BufferStore), block, "its body is not one store")
    pure = is_pure(store.value) and is_pure(store.indices)
    require(pure, block, "it has side effects or reads through a pointer")
    read = loads(store.value, temp)
    require(bool(read), block, f"it does not read `{temp.name}`")
    one = len(read) == count(store, temp)
    one = one and all_equal(read)
    require(one, block, f"it uses more than one element of `{temp.name}`")
    return read[0]


def all_equal(read: list[TensorLoad]) -> bool:
    """Whether all loads are of one element, as far as structure shows."""
    return not any(not structural_equal(read[0], other) for other in read)


# --- step 2: the algebra --------------------------------------------------------------------------


def affine(value: Expr, total: TensorLoad) -> tuple[Expr, Expr] | None:
    """`(scale, addend)` with `value = scale * total + addend`, neither of which mentions the buffer of `total`.

    value: an expression of the dtype of `total`, made of `total`, of anything that does not mention its buffer, and of
    `+`, `-` and `*`, nested in any way. None if it is not of this form: where `total` stands inside any other operation
    (a cast, max, a division, a call), is multiplied by itself, or another element of its buffer is read.

    scale and addend have the dtype of `total`; build them with Python's operators, which fold 0 and 1 away.
    """
    # BEGIN exercise 7.1 (about 14 lines): what does not mention the sum, the sum itself, +, - and *
    raise NotImplementedError("exercise 7.1")
    # END exercise 7.1


def operation(step: Expr, total: TensorLoad) -> type | None:
    """The ⊕ of a reduction's step `total ⊕ x`: Add (also for `total - x`), Mul, Max or Min; None for any other step.

    x must not mention the buffer of `total`, and may be nested: `a + (total - b)` is a sum.
    """
    if not isinstance(step, (Add, Sub, Mul, Max, Min)):
        return None
    if isinstance(step, (Add, Sub)):
        form = affine(step, total)
        return Add if form is not None and is_number(form[0], 1) else None
    return type(step) if grouped(step, total, type(step)) else None


def grouped(value: Expr, total: TensorLoad, op: type) -> bool:
    """Whether `value` is `total` combined by `op` alone with what does not mention its buffer."""
    if isinstance(value, TensorLoad):
        return structural_equal(value, total)
    if not isinstance(value, op):
        return False
    inside, beside = (value.a, value.b) if mentions(value.a, total.source) else (value.b, value.a)
    return not mentions(beside, total.source) and grouped(inside, total, op)


def is_number(value: Expr, number: int) -> bool:
    """Whether `value` is provably the constant `number`."""
    value = Analyzer().simplify(value)
    return isinstance(value, (IntImm, FloatImm)) and value.value == number


def enter_init(
    value: Expr, step: Expr, init: Expr, total: TensorLoad
) -> tuple[str, Expr, Expr] | None:
    """What becomes of a reduction that starts from its epilogue: `(how, init, step)`, or None if it cannot.

    value: the epilogue, f(total). step: one step of the reduction, `total ⊕ x`. init: what `total` starts from.

    how is "init" if f(t ⊕ x) = f(t) ⊕ x: the step stays. That holds exactly if f(t) = t ⊕ c: for a sum, c is added or
    subtracted; for max, min and product, f is the same operation. how is "scaled" if the reduction is a sum and
    f(t) = s * t + c: then f(t + x) = f(t) + s * x, and every x of the step is multiplied by s. In both, the new init is
    f(init); where init is 0 that is c itself. The new step still names `total`; whose buffer that is, is decided later.
    """
    # BEGIN exercise 7.2 (about 12 lines): f(init), which is the addend for 0, and the step: as it was, or scaled
    raise NotImplementedError("exercise 7.2")
    # END exercise 7.2


# --- step 3: the last step ------------------------------------------------------------------------


def reduction_loops(nest: Nest) -> list:
    """The loops that drive a reduction axis, but those of one iteration. Refuses if one drives a spatial axis too."""
    block = nest.block
    values = list(zip(block.iter_vars, nest.realize.iter_values, strict=True))
    summed = [value for axis, value in values if axis.iter_type == IterVar.CommReduce]
    spatial = [value for axis, value in values if axis.iter_type == IterVar.DataPar]
    found = [loop for loop in nest.loops if mentions(summed, loop.loop_var)]
    for loop in found:
        alone = not mentions(spatial, loop.loop_var)
        name = loop.loop_var.name
        require(alone, block, f"its loop `{name}` drives a spatial axis and a reduction at once")
    return [loop for loop in found if not Analyzer().can_prove_equal(loop.extent, 1)]


def last_step(nest: Nest) -> Expr:
    """When the reduction in `nest` has just done the last step of an element: the predicate of a block beside it.

    True in the last iteration of every loop that drives a reduction axis, whatever the reduction's own predicate says
    there, and, of that predicate, only what the other loops decide: a split that does not divide adds such parts. So
    `k0 == 2 and k1 == 1`, not `vk == 4`: with 5 steps split into 3 x 2 and reordered, step 4 is not the last.

    Refuses where a loop drives a spatial and a reduction axis at once, or a part of the predicate mentions both.
    """
    # BEGIN exercise 7.3 (about 14 lines): the last iteration of each, and the spatial part of the predicate
    raise NotImplementedError("exercise 7.3")
    # END exercise 7.3


def conjuncts(predicate: Expr) -> list[Expr]:
    """The parts of `a and b and c`; [] for True."""
    if isinstance(predicate, And):
        return conjuncts(predicate.a) + conjuncts(predicate.b)
    return [] if isinstance(predicate, IntImm) and predicate.value else [predicate]


# --- the guard: each condition alone, so that one can be left out and its case be seen to fail ------


def check_epilogue(sch: Schedule, pair: Pair) -> None:
    """Refuse an epilogue that is no plain elementwise block, and loops that become stages of a pipeline."""
    ch6.check_epilogue(pair.fusion(pair.value))
    keys = [key for loop in pair.site.producer.loops for key in loop.annotations]
    staged = any(key.startswith("software_pipeline") for key in keys)
    require(not staged, pair.reduction, "it is a stage of a software pipeline")


def check_points(sch: Schedule, pair: Pair) -> None:
    """Refuse unless both blocks visit each point once and two points never share an element."""
    ch6.check_domains(sch, pair.fusion(pair.value), pair.step)


def check_some_step(sch: Schedule, pair: Pair) -> None:
    """Refuse a reduction without init that may have no step at all: there would be no last one."""
    for loop in reduction_loops(pair.site.producer):
        runs = pair.reduction.init is not None or Analyzer().can_prove(loop.extent >= 1)
        require(runs, pair.reduction, f"its loop `{loop.loop_var.name}` may have no iteration")


def check_between(sch: Schedule, pair: Pair) -> None:
    """Refuse if a block that runs between the two could tell the difference, or make one.

    After the fusion the epilogue runs earlier: each element as soon as its sum is done. So nothing else in `site.span`
    may mention the output, or write what the epilogue reads: the sums, and its other operands. The reduction itself
    must not mention the output either; it has more sums to make. The refusal names the buffer that clashes.
    """
    # BEGIN exercise 7.4 (about 12 lines): the reduction, and then every other block in between
    output = pair.output.name
    used = mentions(pair.reduction, pair.output)
    require(
        not used, pair.epilogue, f"the reduction uses `{output}`, which it would overwrite early"
    )
    for block in others_between(pair.site):
        name = block.name_hint
        used = mentions(block, pair.output)
        require(not used, pair.epilogue, f"block `{name}` uses `{output}` before it")
    # END exercise 7.4


def others_between(site: Site) -> list[SBlock]:
    """The blocks of `site.span` but its two."""
    found: list[SBlock] = []

    def note(realize: SBlockRealize) -> list:
        found.append(realize.block)
        return [realize]

    for stmt in site.span:
        rebuild(stmt, note)
    two = (site.producer.block, site.consumer.block)
    return [block for block in found if not any(block.same_as(one) for one in two)]


def check_control(sch: Schedule, pair: Pair) -> None:
    """Refuse if the output decides which iterations run: a loop's bounds, a predicate or an axis in between reads it.

    What blocks read and write themselves is the business of `check_between`.
    """
    blocks = [pair.reduction, pair.epilogue, *others_between(pair.site)]
    inside = sum(count(block, pair.output) for block in blocks)
    decides = count(pair.site.span, pair.output) > inside
    require(
        not decides, pair.epilogue, f"`{pair.output.name}` decides which iterations run before it"
    )


def check_own_element(sch: Schedule, pair: Pair) -> None:
    """Refuse an epilogue that reads its output elsewhere than it writes: the order of its points would matter."""
    here = BufferLoad(pair.output, pair.indices)
    for load in loads(pair.value, pair.output):
        own = structural_equal(load, here)
        require(
            own, pair.epilogue, f"it reads another element of `{pair.output.name}` than it writes"
        )
    read = count(pair.epilogue.body, pair.output) == 1 + len(loads(pair.value, pair.output))
    require(read, pair.epilogue, f"`{pair.output.name}` decides where it writes")


def check_memory(sch: Schedule, pair: Pair) -> None:
    """Refuse where memory has two names, or is not seen alike by all threads."""
    ch6.check_memory(pair.fusion(pair.value))
    for load in nodes(pair.value, TensorLoad):
        seen = load.source.same_as(pair.temp) or load.source.scope() in ("", "global")
        same = load.source.same_as(pair.output)
        require(
            seen or same,
            pair.epilogue,
            f"`{load.source.name}` is in memory that threads do not share",
        )


GUARD: dict[str, Callable[[Schedule, Pair], None]] = {
    "elementwise": check_epilogue,
    "each point once": check_points,
    "some step": check_some_step,
    "nobody between": check_between,
    "same iterations": check_control,
    "own element": check_own_element,
    "one memory": check_memory,
}


# --- and for the ways that start from the epilogue ---------------------------------------------------


def check_sums_unseen(pair: Pair, start: Expr, reassociate: bool) -> None:
    """Refuse to replace the sums by partial results that hold the epilogue, if anybody else sees the sums."""
    ch6.check_bystanders(pair.fusion(start))


def check_rounding(pair: Pair, start: Expr, reassociate: bool) -> None:
    """Refuse to change the order of a floating-point reduction where it is not wanted, or is too coarse.

    Integers are exact in any order, barring overflow on the way, which TVM leaves undefined. 16-bit floats hold
    11 bits or fewer: a sum that starts from its bias may then lose every step (2048 + 1 = 2048) or overflow (60000 +
    8000 is infinite). max and min round nothing, but what they make of a NaN, or of 0 and -0, is a matter of order.
    """
    dtype, op = str(pair.temp.dtype), operation(pair.step.value, pair.total)
    if dtype.startswith(("int", "uint")):
        return
    require(op not in (Max, Min), pair.reduction, "the order of its steps decides what a NaN does")
    wide = dtype in ("float32", "float64")
    require(wide, pair.reduction, f"in {dtype} the order of its steps changes the result too much")
    require(reassociate, pair.reduction, "the order of its floating-point steps must stay")


GUARD_OF_INIT: dict[str, Callable[[Pair, Expr, bool], None]] = {
    "sums unseen": check_sums_unseen,
    "order of rounding": check_rounding,
}


# --- step 4: three ways ---------------------------------------------------------------------------


def fuse_into_init(sch: Schedule, pair: Pair, reassociate: bool) -> Way:
    """Start the reduction from the epilogue. Refuses unless the algebra allows it and nobody else sees `temp`."""
    init = pair.reduction.init
    require(init is not None, pair.reduction, "it has no init")
    dtype, output = str(pair.temp.dtype), pair.output
    same = str(output.dtype) == dtype
    require(same, pair.epilogue, f"`{output.name}` has another dtype than `{pair.temp.name}`")
    # TVM leaves unsigned overflow from 32 bits up undefined (0 - c becomes 0), and raises on 0 - 3 in any width.
    below = dtype.startswith("uint") and nodes([pair.value, pair.step.value], Sub)
    require(not below, pair.epilogue, f"a difference may start below 0, where {dtype} overflows")
    entry = enter_init(pair.value, pair.step.value, init.value, pair.total)
    require(entry is not None, pair.epilogue, "what it does to the sum is no part of the reduction")
    how, start, step = entry
    for condition in GUARD_OF_INIT.values():
        condition(pair, start, reassociate)
    fusion = pair.fusion(start)
    total = BufferLoad(pair.output, pair.indices)
    fused = with_fields(
        ch6.fused_block(fusion),
        init=BufferStore(pair.output, ch6.simplified(start), pair.indices),
        body=BufferStore(pair.output, replace_loads(step, pair.temp, total), pair.indices),
    )
    scope = ch6.new_scope(fusion, fused)
    reuse = {pair.site.scope: scope, pair.reduction: fused}
    sch.state.replace(pair.site.scope_sref, scope, reuse)
    return Way(how, _reason(how, pair))


def _reason(how: str, pair: Pair) -> str:
    if how == "init":
        return f"`{pair.epilogue.name_hint}` combines the sum with what does not change along it"
    return (
        f"`{pair.epilogue.name_hint}` multiplies the sum; each of its steps is multiplied instead"
    )


def check_lanes(nest: Nest) -> None:
    """Refuse a vectorized loop around whole sums: this release gives its lanes one element of `temp` between them."""
    wide = reduction_loops(nest)
    for loop in nest.loops:
        if any(loop.same_as(other) for other in wide):
            return
        lanes = loop.kind == ForKind.VECTORIZED
        name = loop.loop_var.name
        require(not lanes, nest.block, f"its loop `{name}` is vectorized, and around whole sums")


def fuse_at_last_step(sch: Schedule, pair: Pair, why: str) -> Way:
    """Move the epilogue into the reduction's innermost loop, to run once an element has its last step."""
    site = pair.site
    check_lanes(site.producer)
    values = dict(
        zip(
            [a.var for a in pair.reduction.iter_vars],
            site.producer.realize.iter_values,
            strict=True,
        )
    )
    where = [substitute(pair.axes[axis.var], values) for axis in pair.epilogue.iter_vars]
    moved = SBlockRealize(where, last_step(site.producer), pair.epilogue)

    def put(realize: SBlockRealize) -> list[SBlockRealize]:
        if realize.block.same_as(pair.epilogue):
            return []
        return [realize, moved] if realize.block.same_as(pair.reduction) else [realize]

    scope = with_fields(site.scope, body=rebuild(site.scope.body, put))
    replace_and_refresh_flags(sch, site.scope_sref, scope)
    return Way("last step", f"not from the init, because {why}")


def fuse_epilogue(
    sch: Schedule,
    reduction_block: SBlockRV | str,
    epilogue_block: SBlockRV | str,
    *,
    reassociate: bool = True,
) -> Way:
    """Make one nest of a reduction and of the elementwise block that reads its result; say which way and why.

    Blocks are given by name or by handle. `sch` changes in place; `sch.trace` does not record it. Buffers that are
    passed to the function are taken to be different memory, as everywhere in TVM. Do `reindex` before, not after: the
    release's puts its copy of the sums behind the loops, and does not look at a block inside them that reads the sums.

    Integers come out exactly, barring overflow on the way. Floating-point sums and products may be reassociated:
    equal up to rounding, provided that no factor is infinite and nothing overflows on the way. With `reassociate=False`
    they keep the order of their steps, and the result is the same to the last bit, whatever the numbers.

    Raises tvm.s_tir.ScheduleError, and leaves `sch` as it was, unless the result is proved to be the same.
    """
    names = (reduction_block, epilogue_block)
    blocks = [sch.get_sblock(name) if isinstance(name, str) else name for name in names]
    pair = match(sch, *blocks)
    for condition in GUARD.values():
        condition(sch, pair)
    try:
        return fuse_into_init(sch, pair, reassociate)
    except ScheduleError as error:
        reason = str(error).split(" cannot be fused: ", 1)[-1].rstrip(".")
        return fuse_at_last_step(sch, pair, reason)


# --- what the conditions are for ------------------------------------------------------------------


def counterexamples() -> dict[str, str]:
    """For each condition the name of a hard case that goes wrong if that condition alone is left out.

    The conditions: "each point once", "nobody between" and "own element" of GUARD, "sums unseen" and "order of
    rounding" of GUARD_OF_INIT. The cases: the names in `chapters.toolkit.cases.hard_cases.CASES`.
    """
    # BEGIN exercise 7.5 (about 7 lines): a case for each of the five
    raise NotImplementedError("exercise 7.5")
    # END exercise 7.5


def predicted_half() -> dict[str, float]:
    """What four sums give in float16, which rounds after every addition; each is added from left to right.

    "bias first": 2048 + 1 + 1 + ... (100 ones). "bias last": 1 + 1 + ... (100 ones) + 2048.
    "up first": 60000 + 8000 - 8000. "up last": 8000 - 8000 + 60000. `float("inf")` is a possible answer.
    """
    # BEGIN exercise 7.6 (about 1 line): four numbers
    raise NotImplementedError("exercise 7.6")
    # END exercise 7.6


def breaks_the_builtin() -> Case:
    """A hard case of your own: the built-in fuses it and computes something else, `fuse_epilogue` fuses it rightly.

    `Case(cause, name, value="s + C[wi, wj]")` is the plain one: value is TVMScript, with `s` for the sum.
    """
    # BEGIN exercise 7.7 (about 2 lines): one line of epilogue will do
    raise NotImplementedError("exercise 7.7")
    # END exercise 7.7
