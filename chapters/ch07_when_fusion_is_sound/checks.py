"""The checks of chapter 7: they evaluate the algebra, walk the loops, and leave out conditions of the guard."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer
from tvm.tirx import BufferLoad, decl_buffer
from tvm_ffi import ObjectConvertible

from chapters.ch07_when_fusion_is_sound import search, side_by_side
from chapters.ch07_when_fusion_is_sound.given import ch6, conjuncts
from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.kit.cases.guard_zones import WroteOutside
from chapters.kit.cases.hard_cases import CASES, Case
from chapters.kit.ir.block_site import Nest, locate
from chapters.kit.ir.parse_alone import from_source
from chapters.kit.ir.tensor_ir import mentions, replace_loads, substitute
from chapters.runner.failure import CheckFailed, message_of
from chapters.runner.loading import explain_parser_error
from solutions.ch07_when_fusion_is_sound import soundness as reference

LESSON = "chapters/ch07_when_fusion_is_sound/lesson.md"
REFUSE = Section(LESSON, "When it must refuse")
BREAK = Section(LESSON, "Break it")
ALGEBRA = Section(LESSON, "What may enter the init")
LAST = Section(LESSON, "The last step")
BETWEEN = Section(LESSON, "Who else looks")
LIMITS = {
    "test_7_4_whole_programs": 60,
    "test_7_5_each_condition_has_its_case": 90,
    "test_7_6_the_builtin_is_wrong_and_ours_right": 40,
    "test_7_7_finds_each_fault": 120,
    "test_7_7_finds_no_fault_where_there_is_none": 60,
}


# --- 7.1: affine ----------------------------------------------------------------------------------


def _parts(dtype: str = "int32"):
    """Two elements of a buffer `temp`, one of another buffer of this name, and two other values, as expressions.

    `total` is equal to `t` and another node, as in `fuse_epilogue`.
    """
    names = "temp", "temp", "C", "E"
    temp, namesake, bias, other = (decl_buffer((8, 8), dtype, name) for name in names)
    i, j = tirx.Var("vi", "int32"), tirx.Var("vj", "int32")
    return {
        "t": BufferLoad(temp, [i, j]),
        "total": BufferLoad(temp, [i, j]),
        "u": BufferLoad(temp, [j, i]),
        "n": BufferLoad(namesake, [i, j]),
        "c": BufferLoad(bias, [i, j]),
        "e": BufferLoad(other, [j, i]),
        "cast": lambda value: value.astype("float32").astype("int32"),
        "max": tirx.max,
        "min": tirx.min,
        "div": tirx.floordiv,
        "select": tirx.Select,
        "load": lambda index: BufferLoad(bias, [index, j]),
    }


AFFINE = (
    *("t", "c", "t + c", "c + t", "t - c", "c - t", "t + c + e", "c - (e - t)", "t * 2", "2 * t"),
    *("(t + c) * 3", "e * (c - t)", "t + t", "t * 3 - t", "(t - c) * (2 - 5) + t * e"),
    *("t + cast(c)", "max(c, e) - t", "t - t + c", "e * (2 * (t + 1) - c)", "t + n", "n * t"),
    "t * (c + e)",
)
NOT_AFFINE = (
    *("t * t", "max(t, c)", "max(t, 0) + c", "div(t, 2)", "cast(t)", "c + cast(t) * 2"),
    *("t * (c + t)", "min(t + c, 9)", "u + c", "t + u", "select(t > 0, t, c)", "c * div(c, t)"),
    "c + load(t)",
)


def _make_expression(text: str, parts: dict):
    return eval(text, {"__builtins__": {}}, parts)


def _number_at(value, parts: dict, numbers: dict[str, int]) -> int:
    """The number that `value` is where t, n, c and e are these numbers."""
    for name, number in numbers.items():
        dtype = str(parts[name].ty.dtype)
        value = replace_loads(value, parts[name].source, tirx.const(number, dtype))
    result = Analyzer().simplify(value)
    if not isinstance(result, (tirx.IntImm, tirx.FloatImm)):
        what = "With numbers for the sum and the operands, your expression is still not a number."
        expected = "an expression of the sum and the operands of the epilogue, and of nothing else"
        raise CheckFailed(what, expected=expected, yours=str(value))
    return int(result.value)


def _draw(seed: int) -> dict[str, int]:
    return dict(zip("tcen", random.Random(seed).sample(range(-40, 40), 4), strict=True))


def test_7_1_scale_and_addend(impl) -> None:
    """value = scale * total + addend, whatever the numbers"""
    parts = _parts()
    for text in AFFINE:
        value = _make_expression(text, parts)
        form = impl.affine(value, parts["total"])
        what = f"Your affine returns {form!r} for `{text}`."
        expected = "the pair (scale, addend) with value = scale * t + addend"
        why = (
            "The expression consists of t, of operands, and of +, - and *, so it has such a pair. Its t equals `total` "
            "structurally, and is another object."
        )
        pair = isinstance(form, (tuple, list)) and len(form) == 2
        ALGEBRA.that(pair, what, expected=expected, why=why if form is None else "")
        why = (
            "Each operation combines the two pairs of its sides: (s t + a) - (s' t + a') is (s - s') t + (a - a'), "
            "and c (s t + a) is (c s) t + c a."
        )
        if "n" in text:
            why = (
                "Here n is an element of another buffer, which has the same name as that of t. Two buffers may share "
                "a name: compare the buffers themselves, as `mentions` and `structural_equal` do."
            )
        for seed in range(4):
            numbers = _draw(seed)
            wanted = _number_at(value, parts, numbers)
            scale, addend = (_number_at(part, parts, numbers | {"t": 991}) for part in form)
            ALGEBRA.equal(
                scale * numbers["t"] + addend,
                wanted,
                f"Your scale * t + addend is not `{text}` at {numbers}: your scale is {scale}, your addend {addend}.",
                why=why,
            )


def test_7_1_everything_else_is_none(impl) -> None:
    """if the sum stands inside another operation, affine returns None"""
    parts = _parts()
    for text in NOT_AFFINE:
        form = impl.affine(_make_expression(text, parts), parts["total"])
        what = f"Your affine finds a scale and an addend for `{text}`."
        why = "No scale and addend give this value for every t."
        if "u" in text:
            why = (
                "Here u is another element of the buffer of t, such as temp[vj, vi]. It is a sum, too, and changes "
                "while the reduction runs, so it is no addend."
            )
        ALGEBRA.that(form is None, what, expected="None", yours=str(form), why=why)


def test_7_1_keeps_the_dtype(impl) -> None:
    """scale and addend have the sum's dtype"""
    for dtype in ("float64", "int64", "int8"):
        parts = _parts(dtype)
        for text in ("t + c", "t", "c - t"):
            form = impl.affine(_make_expression(text, parts), parts["total"])
            kinds = [
                str(part.ty.dtype) if isinstance(part, tvm.ir.Expr) else f"a Python {part!r}"
                for part in form
            ]
            what = f"For `{text}` in {dtype}, your scale and addend have other dtypes."
            why = "A Python 0 or 1 becomes int32. `const(0, dtype)` has the dtype that you name."
            ALGEBRA.equal(kinds, [dtype, dtype], what, why=why)


def observe_7_1(impl):
    parts = _parts()

    def describe(text: str):
        form = impl.affine(_make_expression(text, parts), parts["total"])
        return (
            form
            if form is None
            else [_number_at(part, parts, _draw(7) | {"t": 991}) for part in form]
        )

    return [partial(describe, text) for text in (*AFFINE, *NOT_AFFINE)]


# --- 7.2: enter_init ------------------------------------------------------------------------------

STEPS = {
    "sum": "t + x",
    "difference": "x + (t - y)",
    "max": "max(t, x)",
    "min": "min(x, t)",
    "product": "t * x",
}
# reduction, init, epilogue, the way
ENTERS = (
    ("sum", "0", "t + c", "init"),
    ("sum", "0", "c - e + t", "init"),
    ("sum", "5", "t - c", "init"),
    ("sum", "1", "t + c", "init"),
    ("sum", "e", "t + c", "init"),
    ("sum", "0", "t * 3 + c - t * 2", "init"),
    ("difference", "0", "t + c", "init"),
    ("max", "-90", "max(t, c)", "init"),
    ("max", "-3", "max(e, max(t, c))", "init"),
    ("max", "0", "max(c, t)", "init"),
    ("max", "-3", "t", "init"),
    ("min", "90", "min(c, t)", "init"),
    ("product", "1", "t * c", "init"),
    ("product", "2", "c * t", "init"),
    ("sum", "0", "c - t", "scaled"),
    ("sum", "0", "t * 3", "scaled"),
    ("sum", "7", "(t + c) * e", "scaled"),
    ("difference", "0", "c - t * 2", "scaled"),
    ("sum", "5", "t - t + c", "scaled"),
)
STAYS_OUT = (
    *(("sum", "0", f) for f in ("max(t, 0)", "max(t, c)", "t * t", "div(t, 2)", "min(t + c, 9)")),
    *(("max", "-90", f) for f in ("t + c", "c - t", "min(t, c)", "t * 2", "max(t, c) + 1")),
    ("max", "-90", "max(t + 1, c)"),
    *(("product", "1", f) for f in ("t + c", "max(t, c)")),
    *((kind, "0", "t + c") for kind in ("horner", "turned", "saturating")),
)
ODD_STEPS = {"horner": "t * 2 + x", "turned": "x - t", "saturating": "min(t + x, 9)"}
ALL_STEPS = STEPS | ODD_STEPS


def _make_reduction(kind: str, init: str, epilogue: str, dtype: str):
    parts = _parts(dtype)
    for name in "xy":
        parts[name] = BufferLoad(decl_buffer((8,), dtype, name.upper()), [tirx.Var("vk", "int32")])
    start = tirx.const(int(init), dtype) if init.lstrip("-").isdigit() else parts[init]
    step = _make_expression(ALL_STEPS[kind], parts)
    return parts, _make_expression(epilogue, parts), step, start


def _reduce(parts: dict, start, step, steps: list[dict], held: dict[str, int]) -> int:
    """Start, and then do the steps; t is what is held so far."""
    total = _number_at(start, parts, held)
    for numbers in steps:
        total = _number_at(step, parts, {**held, **numbers, "t": total})
    return total


def _run_both(impl, kind: str, init: str, epilogue: str, seed: int = 3, dtype: str = "int32"):
    """The result unfused, the way, and the result fused."""
    parts, value, step, start = _make_reduction(kind, init, epilogue, dtype)
    entry = impl.enter_init(value, step, start, parts["total"])
    ALGEBRA.that(
        entry is None or (isinstance(entry, (tuple, list)) and len(entry) == 3),
        f"Your enter_init returns no tuple of three for the epilogue `{epilogue}`.",
        expected="(how, init, step), or None",
        yours=str(entry),
    )
    rng = random.Random(seed)
    steps = [{"x": rng.randint(-6, 6), "y": rng.randint(-6, 6)} for _ in range(4)]
    held = {"c": rng.randint(-20, 20), "e": rng.randint(2, 9)}
    unfused = _number_at(value, parts, {**held, "t": _reduce(parts, start, step, steps, held)})
    if entry is None:
        return unfused, None, None
    how, new_start, new_step = entry
    ALGEBRA.that(
        not mentions(new_start, parts["t"].source),
        f"Your new init mentions the sum: {kind} from {init} (`{ALL_STEPS[kind]}`), epilogue `{epilogue}`.",
        expected="f(init): the epilogue with each load of the sum replaced",
        yours=str(new_start),
        why="The init runs before the first step, when there is no sum to read.",
    )
    return unfused, how, _reduce(parts, new_start, new_step, steps, held)


def test_7_2_starts_from_the_epilogue(impl) -> None:
    """a reduction that starts from its epilogue gives the unfused result"""
    for (kind, init, epilogue, way), dtype in itertools.product(ENTERS, ("int32", "float32")):
        said = f"{kind} from {init} (`{ALL_STEPS[kind]}`) in {dtype}, epilogue `{epilogue}`"
        for seed in range(3):
            unfused, how, result = _run_both(impl, kind, init, epilogue, seed, dtype)
            ALGEBRA.that(
                how == way,
                f"Your enter_init returns None, and this epilogue may enter: {said}."
                if how is None
                else f"Your enter_init takes another way: {said}.",
                expected=f'"{way}"',
                yours=repr(how),
                why="An epilogue enters as “init” if it is t itself or ⊕ with a constant, and as “scaled” if the "
                "reduction is a sum and f(t) = s t + c with another s than 1.",
            )
            why = (
                "The new init is f(init), which is the addend only if init is 0. If f multiplies by s, every x that a "
                "step adds is multiplied, too: f(t + x) = f(t) + s x."
            )
            ALGEBRA.equal(
                result, unfused, f"Your fused reduction gives another result: {said}.", why=why
            )


def test_7_2_stays_out_where_it_must(impl) -> None:
    """an epilogue that does not commute with the step is not let in"""
    for kind, init, epilogue in STAYS_OUT:
        _, how, _ = _run_both(impl, kind, init, epilogue)
        what = f"Your enter_init lets `{epilogue}` into the init of this reduction: {kind} (`{ALL_STEPS[kind]}`)."
        yours = f'"{how}"{_find_difference(impl, kind, init, epilogue)}'
        why = "f(t ⊕ x) = f(t) ⊕ x does not hold. Try it with numbers for t and x, as in the lesson's tables."
        ALGEBRA.that(how is None, what, expected="None", yours=yours, why=why)


def _find_difference(impl, kind: str, init: str, epilogue: str) -> str:
    """What comes out of the fused and of the unfused reduction on the first of many inputs that tells them apart."""
    for seed in range(100):
        unfused, _, result = _run_both(impl, kind, init, epilogue, seed)
        if unfused != result:
            return (
                f"; on one input the fused reduction gives {result}, and the unfused one {unfused}"
            )
    return ""


def observe_7_2(impl):
    cases = [case[:3] for case in (*ENTERS, *STAYS_OUT)]
    dtypes = "int32", "float32"
    return [partial(_run_both, impl, *case, dtype=dtype) for case in cases for dtype in dtypes]


# --- 7.3: last_step -------------------------------------------------------------------------------


SUMS = """
@T.prim_func(s_tir=True)
def main(
    n: T.int32, A: T.Buffer((6, 5, 9), "int32"), C: T.Buffer((6, 5), "int32"), D: T.Buffer((6, 5), "int32")
):
    temp = T.sblock_alloc_buffer((6, 5), "int32")
    for i, j in T.grid({rows}, 5):
        for {called} in range({begin}, {begin} + {steps}):
            with T.sblock("matmul"):
                vi, vj = T.axis.remap("SS", [i, j])
                vk = T.axis.reduce({steps}, {called} - {begin})
                T.where({where})
                with T.init():
                    temp[vi, vj] = 0
                temp[vi, vj] = temp[vi, vj] + A[vi, vj, vk]
    for i, j in T.grid(6, 5):
        with T.sblock("bias"):
            wi, wj = T.axis.remap("SS", [i, j])
            D[wi, wj] = T.max(temp[wi, wj] + C[wi, wj], 0)
"""


def _make_sums(
    order: str = "",
    begin: str = "0",
    rows: str = "6",
    steps: str = "5",
    called: str = "k",
    where: str = "True",
    **splits: list | None,
) -> s_tir.Schedule:
    """6 x 5 sums of `steps` steps in block `matmul`, read by block `bias`. The function's first parameter is n.

    splits: the factors of loop i, j or k, or of two that are fused first, `ij`. order: of loops, as i, k0 or k1.
    begin: the first value of loop k. called: its name. where: the reduction's predicate before the splits. rows: 6, in
    a dtype of its own.
    """
    text = SUMS.format(called=called, begin=begin, rows=rows, steps=steps, where=where)
    main = from_source(text)
    sch = s_tir.Schedule(main)
    loops = dict(zip("ijk", sch.get_loops("matmul"), strict=True))
    for name, factors in splits.items():
        loop = sch.fuse(*(loops[one] for one in name)) if len(name) > 1 else loops[name]
        parts = sch.split(loop, factors) if factors else []
        loops |= {f"{name}{number}": part for number, part in enumerate(parts)}
    if order:
        sch.reorder(*(loops[name] for name in order.split()))
    return sch


NESTS = {
    "as written": {},
    "the reduction loop outermost": {"order": "k j i"},
    "the reduction loop runs from 2 to 6": {"begin": "2"},
    "the reduction loop runs from n to n + 4": {"begin": "n"},
    "sums of n steps": {"steps": "n"},
    "loops of int64, as in a kernel of a Relax module": {
        "rows": "T.int64(6)",
        "begin": "T.int64(0)",
        "steps": "T.int64(5)",
    },
    "sums of a single step": {"steps": "1"},
    "sums of a single step, 5 columns split into 3 x 2": {"steps": "1", "j": [None, 2]},
    "the reduction runs where n > 3": {"where": "n > 3"},
    "the reduction runs where k < n": {"where": "k < n"},
    "5 steps split into 3 x 2, the inner loop first": {"k": [None, 2], "order": "k1 k0"},
    "5 steps split into 2 x 3, 5 columns into 3 x 2": {"k": [None, 3], "j": [None, 2]},
    "rows and columns fused and split by 4": {"ij": [None, 4]},
    "5 steps split into 2 x 2 x 2, the innermost loop first": {
        "k": [None, 2, 2],
        "order": "k2 k0 k1",
    },
    "5 columns split into 3 x 2, and two loops are called j_0: the outer one of the two, and the reduction loop": {
        "called": "j_0",
        "j": [None, 2],
    },
}


def _find_reduction(sch: s_tir.Schedule) -> Nest:
    return locate(sch, sch.get_sblock("matmul"), sch.get_sblock("bias")).producer


def _evaluate(expr, values: dict) -> int:
    return int(Analyzer().simplify(substitute(expr, values)).value)


def _find_moments(sch: s_tir.Schedule, predicate, n: int) -> tuple[dict, dict]:
    """For each element: its steps, and how many had been done at each iteration where `predicate` holds."""
    nest = _find_reduction(sch)
    axes = [axis.iter_type for axis in nest.block.iter_vars]
    given = {sch.mod["main"].params[0]: tirx.const(n, "int32")}
    done, moments = {}, {}
    bounds = [(_evaluate(loop.min, given), _evaluate(loop.extent, given)) for loop in nest.loops]
    for point in itertools.product(*(range(first, first + size) for first, size in bounds)):
        numbers = zip(nest.loops, point, strict=True)
        values = given | {
            loop.loop_var: tirx.const(v, str(loop.loop_var.ty.dtype)) for loop, v in numbers
        }
        where = [_evaluate(value, values) for value in nest.realize.iter_values]
        element = tuple(v for v, kind in zip(where, axes, strict=True) if kind == 0)
        if _evaluate(nest.realize.predicate, values):
            done[element] = done.get(element, 0) + 1
        if _evaluate(predicate, values):
            moments.setdefault(element, []).append(done.get(element, 0))
    return done, moments


def _ask_last_step(impl, nest: Nest):
    """What last_step returns, as an expression."""
    predicate = impl.last_step(nest)
    if isinstance(predicate, ObjectConvertible):  # Python's == makes one
        predicate = predicate.asobject()
    LAST.returns(predicate, (tvm.ir.Expr, bool), "last_step", "an expression")
    return tirx.const(predicate, "bool") if isinstance(predicate, bool) else predicate


def test_7_3_once_for_each_element_after_all_its_steps(impl) -> None:
    """the predicate holds once for each element, when all of its steps are done"""
    for name, how in NESTS.items():
        sch = _make_sums(**how)
        nest = _find_reduction(sch)
        try:
            predicate = _ask_last_step(impl, nest)
        except s_tir.ScheduleError as error:
            what = f"Your last_step refuses this nest: {name}."
            why = (
                f"The reduction's predicate is `{nest.realize.predicate}`. No part of it mentions both a reduction "
                "loop and another loop. `conjuncts` gives the parts."
            )
            raise LAST.failed(what, expected="a predicate", yours=str(error), why=why) from None
        if mentions(list(nest.path), sch.mod["main"].params[0]):
            for n in (3, 4):
                _check_once(
                    nest, predicate, f"{name}, with {n} for n", *_find_moments(sch, predicate, n)
                )
        else:
            _check_once(nest, predicate, name, *_find_moments(sch, predicate, 0))


def _check_once(nest: Nest, predicate, name: str, done: dict, moments: dict) -> None:
    """Fail unless each element that has steps has one moment, after all of them."""
    parts = conjuncts(nest.realize.predicate)
    shown = f"in this nest: {name}; your predicate: {predicate}"
    others = sorted(set(moments) ^ set(done))
    LAST.that(
        not others,
        f"With your predicate the epilogue does not run at exactly the elements of the reduction, {shown}.",
        expected=f"each of the {len(done)} elements that have steps, and no other",
        yours=f"{len(set(moments) - set(done))} elements too many, {len(set(done) - set(moments))} missing; "
        f"the first: {others[:1]}",
        why=f"The reduction's own predicate is {' and '.join(map(str, parts))}. Keep its parts that mention no "
        "reduction loop. Drop the parts about the reduction loops: they may be false in the last iteration, in which "
        "the epilogue must run."
        if parts
        else "The epilogue runs for an element when each reduction loop is in its last iteration, min + extent - 1, "
        "whichever iteration the other loops are in.",
    )
    times = {element: seen for element, seen in moments.items() if seen != [done[element]]}
    steps = max(done.values(), default=0)
    LAST.that(
        not times,
        f"Your predicate is not true exactly once per element, after its last step, {shown}.",
        expected=f"true in one iteration per element, with {steps} of {steps} steps done",
        yours="; ".join(
            f"element {e}: at {len(s)} iteration{'s' * (len(s) != 1)}, with {', '.join(map(str, s))} steps done"
            for e, s in list(times.items())[:2]
        ),
        why="The last step of an element is the one that runs last: each reduction loop is then in its last iteration. "
        "Which value the axis has there depends on the order of the loops.",
    )


def test_7_3_a_shared_loop_is_refused(impl) -> None:
    """a loop that drives a spatial axis and the reduction at once is refused"""
    predicate, right = _try_last_step(impl, _make_sums(jk=None))
    what = "One loop drives columns and steps together, and your predicate is not true once per element."
    expected = "a ScheduleError, or a predicate that is right"
    why = "`reduction_loops` refuses such a loop."
    LAST.that(right, what, expected=expected, yours=str(predicate), why=why)


def _try_last_step(impl, sch: s_tir.Schedule):
    """What last_step returns or raises, and whether it may."""
    try:
        predicate = _ask_last_step(impl, _find_reduction(sch))
    except s_tir.ScheduleError as error:
        return error, True
    done, moments = _find_moments(sch, predicate, 0)
    return predicate, moments == {element: [steps] for element, steps in done.items()}


def test_7_3_a_mixed_bound_is_refused(impl) -> None:
    """a bound on a spatial axis and the reduction together is refused"""
    for where, which, how in (
        ("i + k < 4", "rows", {}),
        ("j + k < 4", "columns", {}),
        ("j + i_j_fused < 4", "columns", {"called": "i_j_fused", "ij": None}),  # two of one name
    ):
        predicate, right = _try_last_step(impl, _make_sums(where=where, **how))
        LAST.that(
            right,
            f"The reduction runs where {where}, and your predicate is not true once for each of the {which} that have "
            "a step.",
            expected="a ScheduleError, or a predicate that is right",
            yours=str(predicate),
            why="This part of the predicate mentions both kinds of loops. It cannot be dropped, because "
            f"some {which} have no step at all. It cannot be kept, because it is false in the last iteration of most.",
        )


def observe_7_3(impl):
    def describe(name: str) -> str:
        sch = _make_sums(**NESTS[name])
        predicate = _ask_last_step(impl, _find_reduction(sch))
        return str([sorted(_find_moments(sch, predicate, n)[1].items()) for n in (3, 4)])

    return [partial(describe, name) for name in NESTS]


# --- 7.4: check_between ---------------------------------------------------------------------------

CLASHES = {
    "the bias written in between": "C",
    "the bias written in between and not declared": "C",
    "the bias made from the sums": "C",
    "the sums changed in between": "temp",
    "the output read in between": "D",
    "the output written in between": "D",
    "reads the output": "D",
}
READS = "Two reads of one buffer may change places."
BEFORE_OR_AFTER = "That block runs before the two or after them, in the fused program too."
ALONE = "No other block uses what the epilogue reads or writes."
HARMLESS = {
    "a plain bias": ALONE,
    "the bias read in between": READS,
    "the bias is an operand": READS,
    "the sums read in between": READS,
    "relu": ALONE,
    "the bias written before": BEFORE_OR_AFTER,
    "the bias written afterwards": BEFORE_OR_AFTER,
    "the output read afterwards": BEFORE_OR_AFTER,
    "added to the output": ALONE,
}
OF_OTHER_KINDS = ("two biases", "a bias minus the sum", "a maximum", "read transposed")
SECOND = """\
    for i, j in T.grid(6, 6):
        with T.sblock("second"):
            oi, oj = T.axis.remap("SS", [i, j])
            {}
"""
EPILOGUE = """\
    for i in range(6):
        for j in range(6):
            with T.sblock("bias"):
"""


def _write(second: str = "", declares: str = "", **fields: str) -> str:
    """A Case as text. second: the store of a second block in between. declares: what `bias` declares."""
    text = Case("between", "a program", **fields).text.replace(
        "D[wi, wj] =", f"{declares}D[wi, wj] ="
    )
    return text.replace(EPILOGUE, (SECOND.format(second) if second else "") + EPILOGUE)


THREE_OPERANDS = "T.max(s + C[wi, wj], E[wi, wj]) * F[wi, wj]"
# programs that are no hard cases -> the text, and the buffer or why the fusion does no harm
CLASHING = {name: (CASES[name].text, buffer) for name, buffer in CLASHES.items()} | {
    "the second of three operands written in between": (
        _write(value=THREE_OPERANDS, between="E[oi, oj] = 4"),
        "E",
    ),
    "the last of three operands written in between": (
        _write(value=THREE_OPERANDS, between="F[oi, oj] = 4"),
        "F",
    ),
    "the bias written by the first of two blocks": (
        _write(between="C[oi, oj] = 4", second="F[oi, oj] = E[oi, oj]"),
        "C",
    ),
    "the bias written by the second of two blocks": (
        _write(between="F[oi, oj] = E[oi, oj]", second="C[oi, oj] = 4"),
        "C",
    ),
    "the bias written by the second store of a block": (
        _write(between="F[oi, oj] = E[oi, oj]; C[oi, oj] = 4"),
        "C",
    ),
    "the bias written in between through a second name": (
        _write(
            between='row = T.match_buffer(C[oi, 0:6], (6,), "int32", offset_factor=1); row[oj] = 4'
        ),
        "C",
    ),
    "the bias written in between, and the epilogue does not declare that it reads it": (
        _write(between="C[oi, oj] = 4", declares="T.reads(temp[wi, wj]); T.writes(D[wi, wj]); "),
        "C",
    ),
}
ALLOWED = {name: (CASES[name].text, why) for name, why in HARMLESS.items()} | {
    "a block in between writes a buffer of its own that is called C, too": (
        _write(between='C = T.sblock_alloc_buffer((6, 6), "int32"); C[oi, oj] = 4'),
        "The epilogue reads another buffer. Two buffers may share a name: compare the buffers themselves.",
    ),
}


def _ask_between(impl, text: str) -> str:
    """What check_between says of a program: "" or its sentence."""
    sch = s_tir.Schedule(from_source(text))
    pair = reference.match(sch, sch.get_sblock("matmul"), sch.get_sblock("bias"))
    try:
        impl.check_between(sch, pair)
    except s_tir.ScheduleError as error:
        return str(error) or "a ScheduleError without a word"
    return ""


def test_7_4_refuses_who_would_notice(impl) -> None:
    """a block in between that notices the fusion is refused, and the refusal names the buffer"""
    for name, (text, buffer) in CLASHING.items():
        said = _ask_between(impl, text)
        what = f"Your check_between accepts a program that it must refuse: {name}."
        yours = "no refusal, for the program\n" + text
        why = (
            f"Look at {buffer} in this program. Fused, the epilogue runs as soon as a sum is done: before the blocks "
            "between the two, and while the reduction still computes other sums."
        )
        BETWEEN.that(bool(said), what, expected="a ScheduleError", yours=yours, why=why)
        BETWEEN.that(
            re.search(rf"\b{buffer}\b", said.rpartition("cannot be fused:")[2]),
            f"Your check_between refuses this program, and does not name the buffer {buffer}: {name}.",
            expected=f"a sentence that names {buffer}, from `buffer.name`",
            yours=f"{said}\n{text}",
            why="The reader of a refusal must know what to move out of the way. Here a block writes or uses "
            f"{buffer}. A block that only reads what the epilogue reads is no reason to refuse.",
        )


def test_7_4_allows_who_would_not(impl) -> None:
    """readers of the sums and of the bias, and blocks before and after the two, are accepted"""
    for name, (text, why) in ALLOWED.items():
        said = _ask_between(impl, text)
        what = f"Your check_between refuses a program in which no block notices the fusion: {name}."
        wanted = "no refusal"
        why += " Refusing a harmless program is safe, but the fusion is lost."
        BETWEEN.that(not said, what, expected=wanted, yours=f"{said}\n{text}", why=why)


def test_7_4_whole_programs(impl) -> None:
    """fuse_epilogue, with your parts in it, is right or refuses on hard cases of every kind"""
    for name in (*CLASHES, *HARMLESS, *OF_OTHER_KINDS):
        mod, how = side_by_side.fuse_case(CASES[name], impl.fuse_epilogue)
        came = side_by_side.judge_module(CASES[name], mod)
        what = f"With your functions, fuse_epilogue is wrong on the hard case “{name}”: {came}."
        expected = "the same numbers as unfused, or a ScheduleError"
        BETWEEN.that(came in ("right", "refused"), what, expected=expected, yours=f"{how}\n{mod}")


def observe_7_4(impl):
    programs = (*CLASHING.values(), *ALLOWED.values())
    return [lambda text=text: bool(_ask_between(impl, text)) for text, _ in programs]


# --- 7.5: counterexamples -------------------------------------------------------------------------


def _try(name: str, condition: str) -> tuple[str, str, str]:
    """What comes of a hard case with the whole guard, and without one condition; and what was said without it."""
    case = CASES[name]
    whole, _ = side_by_side.judge(case, reference.fuse_epilogue)
    with search.leave_out(reference, condition):
        return (whole, *side_by_side.judge(case, reference.fuse_epilogue))


def test_7_5_each_condition_has_its_case(impl) -> None:
    """without one condition, the case that you chose for it goes wrong"""
    chosen = impl.counterexamples()
    expected = f"a dict with the keys {', '.join(map(repr, search.CONDITIONS))}"
    expect.returns(chosen, dict, "counterexamples", "a dict", expected=expected)
    missing = [one for one in search.CONDITIONS if one not in chosen]
    what = f"Your dict has no case for {missing}."
    expect.that(not missing, what, expected=expected, yours=f"the keys {list(chosen)}")
    names = [chosen[one] for one in search.CONDITIONS]
    unknown = [name for name in names if not isinstance(name, str) or name not in CASES]
    expected = "names from chapters/kit/cases/hard_cases.py; `sorted(CASES)` lists them"
    expect.that(not unknown, f"No hard case is called {unknown}.", expected=expected)
    tried = {condition: _try(chosen[condition], condition) for condition in search.CONDITIONS}
    lines = [
        f"“{condition}”, “{chosen[condition]}”: with all conditions {whole}; without this one {without} ({said})"
        for condition, (whole, without, said) in tried.items()
        if without not in side_by_side.BAD
    ]
    REFUSE.that(
        not lines,
        f"{len(lines)} of your {len(tried)} cases: not wrong without the condition.",
        expected="a case that is fused when only this condition is left out, and then gives wrong numbers or invalid "
        "TensorIR",
        yours="\n".join(lines),
        why="A program that goes wrong without a condition shows what the condition is for. If it is still refused, "
        "another condition refuses it too. If it is right, the condition does not matter to it.",
    )


def observe_7_5(impl):
    def describe(condition: str) -> str:
        return " ".join(_try(impl.counterexamples()[condition], condition)[:2])

    return [partial(describe, condition) for condition in search.CONDITIONS]


# --- 7.6: breaks_the_builtin ----------------------------------------------------------------------


DOES = {
    "right": "gives the right numbers on",
    "refused": "refuses",
    "wrong": "gives wrong numbers on",
    "outside its arrays": "writes outside of the arrays of",
    "internal error": "stops with an internal error on",
    "not well-formed": "makes a module that is not well-formed of",
    "does not compile": "makes a module that does not compile of",
    "reads not declared": "does not declare all reads of",
    "died": "crashes on",
}


def _judge_case(impl) -> tuple[str, str, str, str]:
    """The built-in's outcome and what it said, ours and the way, for the learner's case."""
    case = impl.breaks_the_builtin()
    expected = "Case(cause, name, value=…) of chapters.kit.cases.hard_cases"
    expect.returns(case, Case, "breaks_the_builtin", "a Case", expected=expected)
    _check_program(case)
    builtin, said = _judge_fusion(case, side_by_side.fuse_with_builtin)
    return (builtin, said, *_judge_fusion(case, reference.fuse_epilogue))


@lru_cache(maxsize=search.DRAWS)  # each is asked about once per opponent
def _check_program(case: Case) -> None:
    """TVM's parser takes the program of `case`, whose indices stay inside its arrays; or the check fails."""
    try:
        case.func  # noqa: B018
    except Exception as error:
        what = f"TVM's parser refuses the program of your Case: {explain_parser_error(error)}"
        expected = "TVMScript in its fields: `s` for the sum, `C[wi, wj]` for an operand, `T.max` and not `max`"
        why = "The fields of a Case are text, and become part of the program as they are."
        raise BREAK.failed(what, expected=expected, yours=case.text, why=why) from None
    try:
        s_tir.analysis.OOBChecker()(tvm.IRModule({"main": case.func}))
    except s_tir.ScheduleError as error:
        raise _fail_outside(case, message_of(error).splitlines()[-1].split(": ")[-1]) from None


def _fail_outside(case: Case, said: str) -> CheckFailed:
    """The failure of a program that leaves its arrays before it is fused."""
    what = f"Unfused, the program of your Case leaves its arrays: {said}"
    why = "What such a program computes is not defined, so no fusion of it is right or wrong."
    return BREAK.failed(what, expected="indices inside the arrays", yours=case.text, why=why)


def _judge_fusion(case: Case, fuse: Callable) -> tuple[str, str]:
    """`side_by_side.judge`, of a program that may itself write outside its arrays."""
    try:
        return side_by_side.judge(case, fuse)
    except WroteOutside as error:
        raise _fail_outside(case, str(error)) from None


def test_7_6_the_builtin_is_wrong_and_ours_right(impl) -> None:
    """the built-in gets your program wrong, and fuse_epilogue gets it right"""
    builtin, said, ours, how = _judge_case(impl)
    what = f"The built-in {DOES[builtin]} your program."
    expected = "a program that the built-in fuses, and that then gives other numbers"
    why = "The built-in drops the addend beside the sum from the step, and applies the rest of f at every step."
    if builtin == "refused":
        why = "A program shows a fault of the built-in only if the built-in fuses it."
    wrong = builtin in ("wrong", "outside its arrays")
    BREAK.that(wrong, what, expected=expected, yours=said, why=why)
    what = f"fuse_epilogue {DOES[ours]} your program."
    expected = "a program that `fuse_epilogue` fuses, in any of its ways"
    why = "The exercise asks for a program that can be fused soundly, and that the built-in gets wrong."
    BREAK.that(ours == "right", what, expected=expected, yours=how, why=why)
    known = {_normalize_text(case): name for name, case in CASES.items()}
    name = known.get(_normalize_text(impl.breaks_the_builtin()), "")
    expect.that(not name, f"Your program is the hard case “{name}”.", expected="one of your own")


def _normalize_text(case: Case) -> str:
    """The text of `case` without the blanks and brackets that change nothing."""
    return ast.unparse(ast.parse(case.text))


def observe_7_6(impl):
    return [lambda: _judge_case(impl)[0], lambda: _judge_case(impl)[2]]


# --- 7.7: draw_case -------------------------------------------------------------------------------

LOOKED_AT = 40  # programs of the generator, on which the whole guard is tried
BREAKS = {
    "each point once": "The epilogue runs at points where it did not run before, or twice at one point.",
    "nobody between": "A block between the two sees other values, or writes too late.",
    "own element": "The epilogue reads a neighbour of the element that it writes, and the fused loops finish the "
    "neighbours in another order.",
    "sums unseen": "Another block reads sums that no longer exist.",
    "order of rounding": "16-bit sums overflow, or lose their steps; one addend cancels another, and what it rounded "
    "is lost.",
}


def _draw_programs(impl, count: int) -> list[Case]:
    """The first programs of the learner's generator."""
    cases = [search.draw_program(impl.draw_case, number) for number in range(count)]
    expected = "Case(cause, name, value=…) of chapters.kit.cases.hard_cases"
    for case in cases:
        expect.returns(case, Case, "draw_case", "a Case", expected=expected)
    return cases


def test_7_7_draws_programs(impl) -> None:
    """your generator draws many different programs"""
    cases = _draw_programs(impl, LOOKED_AT)
    for number, case in reversed(list(enumerate(cases))):  # so that a counter differs
        _check_program(case)
        again = search.draw_program(impl.draw_case, number)
        names = [field.name for field in dataclasses.fields(Case)]
        differ = [name for name in names if repr(getattr(case, name)) != repr(getattr(again, name))]
        BREAK.that(
            not differ,
            "With the same results of `draw`, your draw_case returns two different programs.",
            expected="a program that only the results of `draw` decide",
            yours="; ".join(
                f"{one}: {getattr(case, one)!r}, then {getattr(again, one)!r}" for one in differ
            ),
            why="The search draws a program again from its number. It cannot if another source, such as `random` or a "
            "counter, has a part in it.",
        )
    texts = {case.text for case in cases}
    BREAK.that(
        len(texts) >= LOOKED_AT // 4,
        f"Among {LOOKED_AT} programs of your generator there are only {len(texts)} different ones.",
        expected="fields that are drawn independently of one another: `draw([…])` for each",
        why="A search finds only what its generator can make, and a fault often needs two things to coincide.",
    )


def test_7_7_finds_no_fault_where_there_is_none(impl) -> None:
    """with all of its conditions, your fuse_epilogue fuses many of the programs, and each of them right"""
    right = 0
    for case, times in Counter(_draw_programs(impl, LOOKED_AT)).items():
        came, how = _judge_fusion(case, impl.fuse_epilogue)
        what = f"Your own fuse_epilogue, with its whole guard, {DOES[came]} a program of your generator."
        expected = "the numbers of the unfused program, or a refusal"
        why = "One of your functions of 7.1 to 7.4 may have a fault that their checks do not see."
        yours = f"{how}\n{case.text}"
        BREAK.that(came in ("right", "refused"), what, expected=expected, yours=yours, why=why)
        right += times * (came == "right")
    BREAK.that(
        right >= LOOKED_AT // 5,
        f"Your fuse_epilogue refuses {LOOKED_AT - right} of {LOOKED_AT} programs of your generator.",
        expected=f"at least {LOOKED_AT // 5} that are fused",
        why="A program with three things wrong is refused for each of them. If one condition is left out, another one "
        "still refuses it, so such programs find nothing.",
    )


def _find_first_wrong(cases: list[Case], fuse) -> search.Wrong | None:
    """The first of `cases` that `fuse` gets wrong."""
    for case in dict.fromkeys(cases):  # a generator draws some programs more than once
        _check_program(case)
        try:
            if wrong := search.find_wrong_numbers(case, fuse):
                return wrong
        except WroteOutside as error:
            raise _fail_outside(case, str(error)) from None
    return None


def test_7_7_finds_each_fault(impl) -> None:
    """with any one condition left out of your guard the search finds a wrong program, and one for chapter 6"""
    cases = _draw_programs(impl, search.DRAWS)
    for condition in search.CONDITIONS:
        with search.leave_out(impl, condition):
            wrong = _find_first_wrong(cases, impl.fuse_epilogue)
        what = f"Without “{condition}”, your fuse_epilogue is right on {search.DRAWS} programs of your generator."
        expected = (
            "a program that is fused when only this condition is left out, and then goes wrong"
        )
        BREAK.that(wrong is not None, what, expected=expected, why=BREAKS[condition])
    wrong = _find_first_wrong(cases, ch6.fuse_reduction_epilogue)
    what = f"Chapter 6's primitive is right on {search.DRAWS} programs of your generator."
    expected = "a program that it fuses and gets wrong"
    why = "Chapter 6 does not ask how its sums round, so what it gets wrong are programs in floating point."
    BREAK.that(wrong is not None, what, expected=expected, why=why)


def observe_7_7(impl):
    def says_of(fact) -> bool:
        return fact(_draw_programs(impl, LOOKED_AT))

    def has_large_numbers(case: Case) -> bool:
        return any(abs(number) >= 1024 for number in case.fill.values())

    def count_unusual_fields(case: Case) -> int:
        usual = Case(case.cause, case.name)
        return sum(getattr(case, one) != value for one, value in vars(usual).items())

    return [
        partial(says_of, lambda cases: len({case.loops for case in cases}) > 1),
        partial(says_of, lambda cases: any(map(has_large_numbers, cases))),
        partial(says_of, lambda cases: any(case.dtype == "float16" for case in cases)),
        partial(says_of, lambda cases: any(case.between or case.after for case in cases)),
        partial(says_of, lambda cases: min(map(count_unusual_fields, cases)) >= 3),
    ]
