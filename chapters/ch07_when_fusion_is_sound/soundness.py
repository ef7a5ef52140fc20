"""Chapter 7: fuse an epilogue into its reduction in the way that can be proved, or refuse.

With `t ⊕ x` for a step of the reduction and `f` for the epilogue, `fuse_epilogue`, at the end, tries three ways:

    init        f(t ⊕ x) = f(t) ⊕ x          start from f(init), keep the step
    scaled      f(t + x) = f(t) + s * x      start from f(init), scale the step by s
    last step   any f                        keep the sum, apply f to it when its last step has been done

The first two change the order of the arithmetic, the third does not. Each is taken only where its conditions are
proved.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr, TensorLoad
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer
from tvm.tirx import EQ, Add, Max, Min, Mul, Sub, const
from tvm_ffi import structural_equal

from chapters.ch07_when_fusion_is_sound.given import (
    REASONS,
    MatchedPair,
    Way,
    check_control,
    check_dtypes,
    check_epilogue,
    check_lanes,
    check_memory,
    check_own_element,
    check_points,
    check_rounding,
    check_some_step,
    check_sums_unseen,
    conjuncts,
    grouped,
    is_number,
    match,
    operation,
    others_between,
    reduction_loops,
    run_beside,
    start_from,
)
from chapters.kit.cases.hard_cases import Case
from chapters.kit.ir.block_site import Nest
from chapters.kit.ir.refuse import require
from chapters.kit.ir.tensor_ir import may_write, mentions, nodes, replace_loads

# --- what may enter the init ----------------------------------------------------------------------


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


# --- the last step --------------------------------------------------------------------------------


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


# --- the guard: who else looks --------------------------------------------------------------------


def check_between(sch: Schedule, pair: MatchedPair) -> None:
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


# What each way needs, by name, in the order in which it is asked; what only the ways that start from the epilogue need.
GUARD = {
    "elementwise": check_epilogue,
    "each point once": check_points,
    "some step": check_some_step,
    "nobody between": check_between,
    "same iterations": check_control,
    "own element": check_own_element,
    "one memory": check_memory,
}
GUARD_OF_INIT = {"sums unseen": check_sums_unseen, "order of rounding": check_rounding}

# --- three ways -----------------------------------------------------------------------------------


def fuse_into_init(sch: Schedule, pair: MatchedPair, reassociate: bool) -> Way:
    """Start the reduction from the epilogue. Refuses unless the algebra allows it and nobody else sees the sums."""
    check_dtypes(pair)
    entry = enter_init(pair.value, pair.step.value, pair.reduction.init.value, pair.total)
    require(entry is not None, pair.epilogue, "what it does to the sum is no part of the reduction")
    how, start, step = entry
    for condition in GUARD_OF_INIT.values():
        condition(pair, start, reassociate)
    start_from(sch, pair, start, step)
    return Way(how, REASONS[how].format(pair.epilogue.name_hint))


def fuse_at_last_step(sch: Schedule, pair: MatchedPair, why: str) -> Way:
    """Move the epilogue into the reduction's innermost loop, to run once an element has its last step."""
    check_lanes(pair.site.producer)
    run_beside(sch, pair, last_step(pair.site.producer))
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
    rounding" of GUARD_OF_INIT. The cases: the names in `chapters.kit.cases.hard_cases.CASES`.
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
