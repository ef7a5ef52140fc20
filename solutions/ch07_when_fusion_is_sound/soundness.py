"""Chapter 7: fuse an epilogue into its reduction in the way that can be proved, or refuse.

With `t ⊕ x` for a step of the reduction and `f` for the epilogue, `fuse_epilogue`, at the end, tries three ways:

    init        f(t ⊕ x) = f(t) ⊕ x          start from f(init), keep the step
    scaled      f(t + x) = f(t) + s * x      start from f(init), scale the step by s
    last step   any f                        keep the sum, apply f after its last step

The first two change the order of the arithmetic, and the third does not. `fuse_epilogue` takes a way only if it can
prove the conditions of that way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
    """Return `(scale, addend)` with `value = scale * total + addend`, or None if `value` is not of this form.

    value: an expression of the dtype of `total`. It has this form if it is made of `total`, of anything that does not
    mention the buffer of `total`, and of `+`, `-` and `*`, nested in any way. It has not if `total` stands inside any
    other operation (a cast, max, a division, a call), is multiplied by itself, or if another element of its buffer is
    read.

    scale and addend do not mention that buffer, and have the dtype of `total`. Build them with Python's operators,
    which fold 0 and 1 away.
    """
    # BEGIN exercise 7.1 (about 14 lines): no mention of the sum; the sum itself; +, - and *; anything else
    zero, one = const(0, str(total.source.dtype)), const(1, str(total.source.dtype))
    if not mentions(value, total.source):
        return zero, value
    if isinstance(value, TensorLoad):
        return (one, zero) if structural_equal(value, total) else None
    if not isinstance(value, (Add, Sub, Mul)):
        return None
    left, right = affine(value.a, total), affine(value.b, total)
    if left is None or right is None:
        return None
    if isinstance(value, Add):
        return left[0] + right[0], left[1] + right[1]
    if isinstance(value, Sub):
        return left[0] - right[0], left[1] - right[1]
    constant, other = (value.a, right) if not mentions(value.a, total.source) else (value.b, left)
    return None if mentions(constant, total.source) else (constant * other[0], constant * other[1])
    # END exercise 7.1


def enter_init(
    value: Expr, step: Expr, init: Expr, total: TensorLoad
) -> tuple[str, Expr, Expr] | None:
    """Return `(how, init, step)` of the reduction that starts from its epilogue, or None if it may not.

    value: the epilogue, f(total). step: one step of the reduction, `total ⊕ x`. init: what `total` starts from.

    how is "init" if f(t ⊕ x) = f(t) ⊕ x. Then the step stays. For a sum, f adds or subtracts; for max, min and product,
    f is the same operation. how is "scaled" if the reduction is a sum and f(t) = s * t + c, with another s than 1. Then
    every x that the step adds is multiplied by s. In both ways the new init is f(init). If init is 0 in a sum, that is
    the addend c. The new step still names `total`; the output takes its place later.
    """
    # BEGIN exercise 7.2 (about 12 lines): which ⊕ is it, does f fit it, the new init, the new step
    op = operation(step, total)
    start = replace_loads(value, total.source, init)
    if op in (Mul, Max, Min):
        return ("init", start, step) if grouped(value, total, op) else None
    form = affine(value, total) if op is Add else None
    if form is None:
        return None
    scale, addend = form
    start = addend if is_number(init, 0) else start
    if is_number(scale, 1):
        return "init", start, step
    return "scaled", start, total + scale * affine(step, total)[1]
    # END exercise 7.2


# --- the last step --------------------------------------------------------------------------------


def last_step(nest: Nest) -> Expr:
    """Return the predicate of a block beside the reduction: true when an element has had its last step.

    It is true if every loop that drives a reduction axis is in its last iteration, even if the reduction's own
    predicate cuts that iteration off. Of that predicate keep the parts that mention only spatial loops; a split that
    does not divide adds such parts. So `k0 == 2 and k1 == 1`, and not `vk == 4`: with 5 steps split into 3 x 2 and the
    loops exchanged, step 4 is the third.

    Refuses if one loop drives a spatial and a reduction axis, or if one part of the predicate mentions both kinds of
    loops.
    """
    # BEGIN exercise 7.3 (about 14 lines): the last iteration of each loop, and the spatial parts of the predicate
    own = [loop.loop_var for loop in reduction_loops(nest)]
    others = [loop.loop_var for loop in nest.loops if loop.loop_var not in own]
    parts = [EQ(loop.loop_var, loop.min + loop.extent - 1) for loop in reduction_loops(nest)]
    for part in conjuncts(nest.realize.predicate):
        if not any(mentions(part, var) for var in own):
            parts.append(part)
            continue
        mixed = any(mentions(part, var) for var in others)
        require(
            not mixed,
            nest.block,
            "one bound on its loops is on spatial and reduction loops at once",
        )
    return Analyzer().simplify(tirx.all(*parts)) if parts else const(True, "bool")
    # END exercise 7.3


# --- the guard: who else looks --------------------------------------------------------------------


def check_between(sch: Schedule, pair: MatchedPair) -> None:
    """Refuse if a block between the two would see or cause other values after the fusion.

    Fused, the epilogue runs earlier: for each element as soon as its sum is done. So no block between the two may
    mention the output, or write what the epilogue reads, which is the sums and its other operands. The reduction must
    not mention the output either, because it still has other sums to compute. The refusal names the buffer.
    """
    # BEGIN exercise 7.4 (about 12 lines): the reduction, and then every block in between
    output, late = pair.output.name, f"before `{pair.epilogue.name_hint}` is done"
    used = mentions(pair.reduction, pair.output)
    require(
        not used, pair.epilogue, f"the reduction uses `{output}`, which it would overwrite early"
    )
    operands = {load.source for load in nodes(pair.value, TensorLoad)} - {pair.output}
    for block in others_between(pair.site):
        name = block.name_hint
        used = mentions(block, pair.output)
        require(not used, pair.epilogue, f"block `{name}` uses `{output}` {late}")
        for operand in operands:
            stable = not may_write(block, operand)
            require(stable, pair.epilogue, f"block `{name}` may write `{operand.name}` {late}")
    # END exercise 7.4


# GUARD: the conditions of all three ways, by name, in the order in which they are checked. GUARD_OF_INIT: the further
# conditions of the two ways that start from the epilogue.
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
    """Start the reduction from the epilogue. Refuses unless the algebra allows it and no other block sees the sums."""
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
    """Fuse a reduction and the elementwise block that reads its result; return which way was taken, and why.

    Blocks are given by name or by handle. `sch` changes in place. `sch.trace` does not record the fusion, because
    Python cannot register a kind of instruction; a replay leaves it out. Buffers that are passed to the function are
    assumed to be different memory, as everywhere in TVM.

    After the way "last step", three primitives of this release go wrong, so call them before: `reindex` and
    `pad_einsum` overlook the block in the loops that reads the sums, and `vectorize` of a loop around whole sums gives
    all its lanes one sum.

    Integer results are exact, unless a sum overflows on the way. Floating-point sums and products may be reassociated:
    the result is equal up to rounding, if no factor is infinite and nothing overflows on the way. With
    `reassociate=False` the same operations are done on the same values in the same order. Then the result is the same
    to the last bit, unless the compiler contracts a product and a sum into one FMA, which rounds once. LLVM and NVCC do
    so if the target has FMA.

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
    """Return for each condition the name of a hard case that goes wrong if that condition alone is left out.

    The conditions: "each point once", "nobody between" and "own element" of GUARD, "sums unseen" and "order of
    rounding" of GUARD_OF_INIT. The cases: the names in `chapters.kit.cases.hard_cases.CASES`.
    """
    # BEGIN exercise 7.5 (about 7 lines): a case for each of the five
    return {
        "each point once": "loops over four of six rows",
        "nobody between": "the bias written in between",
        "own element": "reads an element the sums reach later",
        "sums unseen": "the sums read afterwards",
        "order of rounding": "half precision 60000 up 8000 and down again",
    }
    # END exercise 7.5


def breaks_the_builtin() -> Case:
    """Return a hard case of your own: the built-in fuses it and computes other numbers, and `fuse_epilogue` is right.

    `Case(cause, name, value="s + C[wi, wj]")` is a plain bias. value is TVMScript, with `s` for the sum.
    """
    # BEGIN exercise 7.6 (about 2 lines): one line of epilogue is enough
    return Case("mine", "my own", value="T.max(C[wi, wj] - s, E[wi, wj])")
    # END exercise 7.6


def draw_case(draw: Callable[[Sequence], Any]) -> Case:
    """Return a program for a search that looks for faults of a primitive like `fuse_epilogue`.

    draw(options) returns one element of a list, each with the same chance. All fields of a `Case` may be drawn. Each
    program that can come out must be one that TVM's parser takes.
    """
    # BEGIN exercise 7.7 (about 12 lines): what must vary, and how often, so that each fault shows?
    half = {"dtype": "float16", "fill": {"A": 1, "B": 1, "C": 2048}}
    usual = [{}] * 3
    odd = draw(
        [
            *usual,
            half,
            {"run_rows": 4},
            {"between": draw(["C[oi, oj] = 4", "F[oi, oj] = D[oi, oj]", "temp[oi, oj] = 1"])},
            {"after": "F[oi, oj] = temp[oi, oj]"},
            {"value": f"s + D[T.max(wi - {draw([0, 1])}, 0), T.min(wj + {draw([0, 1])}, 5)]"},
        ]
    )
    value = draw(["s + C[wi, wj]", "C[wi, wj] - s", "T.max(s + C[wi, wj], 0)"])
    loops = draw(["i j k", "j i k", "k i j"])
    return Case("drawn", "a drawn program", **{"value": value, "loops": loops, **odd})
    # END exercise 7.7
