"""The checks of chapter 7: they evaluate the algebra, walk the loops, and leave out conditions of the guard."""

from __future__ import annotations

import itertools
import random
import re
from functools import partial

import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T
from tvm.sym import Analyzer
from tvm.tirx import BufferLoad, decl_buffer

from chapters.ch07_when_fusion_is_sound import search, side_by_side
from chapters.ch07_when_fusion_is_sound.given import ch6
from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.kit.cases.hard_cases import CASES, Case
from chapters.kit.ir.block_site import Nest, locate
from chapters.kit.ir.tensor_ir import replace_loads, substitute
from chapters.runner.failure import CheckFailed
from chapters.runner.loading import parser_said
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
    """Two elements of a buffer `temp`, and two other values, all as expressions."""
    temp, bias, other = (decl_buffer((8, 8), dtype, name) for name in ("temp", "C", "E"))
    i, j = tirx.Var("vi", "int32"), tirx.Var("vj", "int32")
    return {
        "t": BufferLoad(temp, [i, j]),
        "u": BufferLoad(temp, [j, i]),
        "c": BufferLoad(bias, [i, j]),
        "e": BufferLoad(other, [j, i]),
        "cast": lambda value: value.astype("float32").astype("int32"),
        "max": tirx.max,
        "min": tirx.min,
        "div": tirx.floordiv,
        "select": tirx.Select,
    }


AFFINE = (
    *("t", "c", "t + c", "c + t", "t - c", "c - t", "t + c + e", "c - (e - t)", "t * 2", "2 * t"),
    *("t * c", "(t + c) * 3", "e * (c - t)", "t + t", "t * 3 - t", "(t - c) * (2 - 5) + t * e"),
    *("t + cast(c)", "max(c, e) - t", "t - t + c", "e * (2 * (t + 1) - c)"),
)
NOT_AFFINE = (
    *("t * t", "max(t, c)", "max(t, 0) + c", "div(t, 2)", "cast(t)", "c + cast(t) * 2"),
    *("t * (c + t)", "min(t + c, 9)", "u + c", "t + u", "select(t > 0, t, c)", "c * div(c, t)"),
)


def _expression(text: str, parts: dict):
    return eval(text, {"__builtins__": {}}, parts)


def _at(value, parts: dict, numbers: dict[str, int]) -> int:
    """The number that `value` is where t, c and e are these numbers."""
    for name, number in numbers.items():
        dtype = str(parts[name].ty.dtype)
        value = replace_loads(value, parts[name].source, tirx.const(number, dtype))
    result = Analyzer().simplify(value)
    if not isinstance(result, (tirx.IntImm, tirx.FloatImm)):
        what = "With numbers for t, c and e, your expression is still not a number."
        expected = "an expression of the sum and the operands of the epilogue, and of nothing else"
        raise CheckFailed(what, expected=expected, yours=str(value))
    return int(result.value)


def _numbers(seed: int) -> dict[str, int]:
    return dict(zip("tce", random.Random(seed).sample(range(-40, 40), 3), strict=True))


def test_7_1_scale_and_addend(impl) -> None:
    """value = scale * total + addend, whatever the numbers"""
    parts = _parts()
    for text in AFFINE:
        value = _expression(text, parts)
        form = impl.affine(value, parts["t"])
        what = f"Your affine returns {form!r} for `{text}`."
        expected = "the pair (scale, addend) with value = scale * t + addend"
        why = "The expression consists of t, of operands, and of +, - and *, so it has such a pair."
        ALGEBRA.that(form is not None and len(form) == 2, what, expected=expected, why=why)
        for seed in range(4):
            numbers = _numbers(seed)
            wanted = _at(value, parts, numbers)
            scale, addend = (_at(part, parts, numbers | {"t": 991}) for part in form)
            ALGEBRA.equal(
                scale * numbers["t"] + addend,
                wanted,
                f"Your scale * t + addend is not `{text}` at {numbers}: your scale is {scale}, your addend {addend}.",
                why="Each operation combines the two pairs of its sides: (s t + a) - (s' t + a') is "
                "(s - s') t + (a - a'), and c (s t + a) is (c s) t + c a.",
            )


def test_7_1_everything_else_is_none(impl) -> None:
    """if the sum stands inside another operation, affine returns None"""
    parts = _parts()
    for text in NOT_AFFINE:
        form = impl.affine(_expression(text, parts), parts["t"])
        what = f"Your affine finds a scale and an addend for `{text}`."
        why = "No scale and addend give this value for every t."
        if "u" in text:
            why += " (Here u is another element of the buffer of t.)"
        ALGEBRA.that(form is None, what, expected="None", yours=str(form), why=why)


def test_7_1_keeps_the_dtype(impl) -> None:
    """scale and addend have the sum's dtype"""
    for dtype in ("float64", "int64", "int8"):
        parts = _parts(dtype)
        for text in ("t + c", "t", "c - t"):
            form = impl.affine(_expression(text, parts), parts["t"])
            kinds = [
                str(part.ty.dtype) if isinstance(part, tvm.ir.Expr) else f"a Python {part!r}"
                for part in form
            ]
            what = f"For `{text}` in {dtype}, your scale and addend have other dtypes."
            why = "A Python 0 or 1 becomes int32. `const(0, dtype)` has the dtype that you name."
            ALGEBRA.equal(kinds, [dtype, dtype], what, why=why)


def observe_7_1(impl):
    parts = _parts()

    def seen(text: str):
        form = impl.affine(_expression(text, parts), parts["t"])
        return (
            form if form is None else [_at(part, parts, _numbers(7) | {"t": 991}) for part in form]
        )

    return [partial(seen, text) for text in (*AFFINE, *NOT_AFFINE)]


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
    ("difference", "0", "t + c", "init"),
    ("max", "-90", "max(t, c)", "init"),
    ("max", "-3", "max(e, max(t, c))", "init"),
    ("min", "90", "min(c, t)", "init"),
    ("product", "1", "t * c", "init"),
    ("sum", "0", "c - t", "scaled"),
    ("sum", "0", "t * 3", "scaled"),
    ("sum", "7", "(t + c) * e", "scaled"),
    ("difference", "0", "c - t * 2", "scaled"),
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


def _reduction(kind: str, init: str, epilogue: str):
    parts = _parts()
    for name in "xy":
        parts[name] = BufferLoad(
            decl_buffer((8,), "int32", name.upper()), [tirx.Var("vk", "int32")]
        )
    start = tirx.const(int(init), "int32") if init.lstrip("-").isdigit() else parts[init]
    step = _expression(ALL_STEPS[kind], parts)
    return parts, _expression(epilogue, parts), step, start


def _run(parts: dict, start, step, steps: list[dict], held: dict[str, int]) -> int:
    """Start, and then do the steps; t is what is held so far."""
    total = _at(start, parts, held)
    for numbers in steps:
        total = _at(step, parts, {**held, **numbers, "t": total})
    return total


def _both(impl, kind: str, init: str, epilogue: str, seed: int = 3):
    """The result unfused, the way, and the result fused."""
    parts, value, step, start = _reduction(kind, init, epilogue)
    entry = impl.enter_init(value, step, start, parts["t"])
    rng = random.Random(seed)
    steps = [{"x": rng.randint(-6, 6), "y": rng.randint(-6, 6)} for _ in range(4)]
    held = {"c": rng.randint(-20, 20), "e": rng.randint(2, 9)}
    unfused = _at(value, parts, {**held, "t": _run(parts, start, step, steps, held)})
    if entry is None:
        return unfused, None, None
    how, new_start, new_step = entry
    return unfused, how, _run(parts, new_start, new_step, steps, held)


def test_7_2_starts_from_the_epilogue(impl) -> None:
    """a reduction that starts from its epilogue gives the unfused result"""
    for kind, init, epilogue, way in ENTERS:
        said = f"{kind} from {init} (`{ALL_STEPS[kind]}`), epilogue `{epilogue}`"
        for seed in range(3):
            unfused, how, result = _both(impl, kind, init, epilogue, seed)
            ALGEBRA.that(
                how == way,
                f"Your enter_init returns None, and this epilogue may enter: {said}."
                if how is None
                else f"Your enter_init takes another way: {said}.",
                expected=f'"{way}"',
                yours=repr(how),
                why="An epilogue enters as “init” if it is ⊕ with a constant, and as “scaled” if the reduction is a "
                "sum and f(t) = s t + c with another s than 1.",
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
        _, how, _ = _both(impl, kind, init, epilogue)
        what = f"Your enter_init lets `{epilogue}` into the init of this reduction: {kind} (`{ALL_STEPS[kind]}`)."
        yours = f'"{how}"{_one_difference(impl, kind, init, epilogue)}'
        why = "f(t ⊕ x) = f(t) ⊕ x does not hold. Try it with numbers for t and x, as in the lesson's tables."
        ALGEBRA.that(how is None, what, expected="None", yours=yours, why=why)


def _one_difference(impl, kind: str, init: str, epilogue: str) -> str:
    """What comes out of the fused and of the unfused reduction on the first of many inputs that tells them apart."""
    for seed in range(100):
        unfused, _, result = _both(impl, kind, init, epilogue, seed)
        if unfused != result:
            return (
                f"; on one input the fused reduction gives {result}, and the unfused one {unfused}"
            )
    return ""


def observe_7_2(impl):
    cases = [case[:3] for case in (*ENTERS, *STAYS_OUT)]
    return [partial(_both, impl, *case) for case in cases]


# --- 7.3: last_step -------------------------------------------------------------------------------


def _summing(
    order: str = "", begin: int = 0, steps: int = 5, **splits: list | None
) -> s_tir.Schedule:
    """6 x 5 sums of `steps` steps in block `matmul`, read by block `bias`.

    splits: the factors of loop i, j or k, or of two that are fused first, `ij`. order: of loops, as i, k0 or k1.
    begin: the first value of loop k.
    """

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((6, 5, 5), "int32"), C: T.Buffer((6, 5), "int32"), D: T.Buffer((6, 5), "int32")
    ):
        temp = T.sblock_alloc_buffer((6, 5), "int32")
        for i, j in T.grid(6, 5):
            for k in range(begin, begin + steps):
                with T.sblock("matmul"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    vk = T.axis.reduce(steps, k - begin)
                    with T.init():
                        temp[vi, vj] = 0
                    temp[vi, vj] = temp[vi, vj] + A[vi, vj, vk]
        for i, j in T.grid(6, 5):
            with T.sblock("bias"):
                wi, wj = T.axis.remap("SS", [i, j])
                D[wi, wj] = T.max(temp[wi, wj] + C[wi, wj], 0)

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
    "the reduction loop runs from 2 to 6": {"begin": 2},
    "sums of a single step": {"steps": 1},
    "5 steps split into 3 x 2, the inner loop first": {"k": [None, 2], "order": "k1 k0"},
    "5 steps split into 2 x 3, 5 columns into 3 x 2": {"k": [None, 3], "j": [None, 2]},
    "rows and columns fused and split by 4": {"ij": [None, 4]},
    "5 steps split into 2 x 2 x 2, the innermost loop first": {
        "k": [None, 2, 2],
        "order": "k2 k0 k1",
    },
}


def _reduction_of(sch: s_tir.Schedule) -> Nest:
    return locate(sch, sch.get_sblock("matmul"), sch.get_sblock("bias")).producer


def _number(expr, values: dict) -> int:
    return int(Analyzer().simplify(substitute(expr, values)).value)


def _moments(nest: Nest, predicate) -> dict[tuple[int, ...], list[int]]:
    """For each element: how many of its steps had been done at each iteration where `predicate` holds."""
    axes = [axis.iter_type for axis in nest.block.iter_vars]
    loops, done, moments = nest.loops, {}, {}
    ranges = [range(int(loop.min), int(loop.min) + int(loop.extent)) for loop in loops]
    for point in itertools.product(*ranges):
        values = {lo.loop_var: tirx.const(v, "int32") for lo, v in zip(loops, point, strict=True)}
        where = [_number(value, values) for value in nest.realize.iter_values]
        element = tuple(v for v, kind in zip(where, axes, strict=True) if kind == 0)
        if _number(nest.realize.predicate, values):
            done[element] = done.get(element, 0) + 1
        if _number(predicate, values):
            moments.setdefault(element, []).append(done.get(element, 0))
    return moments


def test_7_3_once_for_each_element_after_all_its_steps(impl) -> None:
    """the predicate holds once for each element, when all of its steps are done"""
    for name in NESTS:
        nest = _reduction_of(_summing(**NESTS[name]))
        predicate = impl.last_step(nest)
        moments = _moments(nest, predicate)
        shown = f"in this nest: {name}; your predicate: {predicate}"
        elements = set(itertools.product(range(6), range(5)))
        others = sorted(set(moments) ^ elements)
        LAST.that(
            not others,
            f"With your predicate the epilogue does not run at exactly the elements of the reduction, {shown}.",
            expected="each of the 6 x 5 elements, and no other",
            yours=f"{len(set(moments) - elements)} elements too many, {len(elements - set(moments))} missing; "
            f"the first: {others[:1]}",
            why="A split that does not divide adds iterations, and the reduction's predicate cuts them off. Keep the "
            "parts of it that mention only spatial loops. Drop the parts about the reduction loops: they are false in "
            "the last iteration, in which the epilogue must run.",
        )
        steps = NESTS[name].get("steps", 5)
        times = {element: seen for element, seen in moments.items() if seen != [steps]}
        LAST.that(
            not times,
            f"Your predicate is not true exactly once per element, after its last step, {shown}.",
            expected=f"true in one iteration per element, with {steps} of {steps} steps done",
            yours="; ".join(
                f"element {e}: at {len(s)} iteration{'s' * (len(s) != 1)}, with {', '.join(map(str, s))} steps done"
                for e, s in list(times.items())[:2]
            ),
            why="The last step is the one that runs last. Which value the axis then has depends on the loops' order.",
        )


def test_7_3_a_shared_loop_is_refused(impl) -> None:
    """a loop that drives a spatial axis and the reduction at once is refused"""
    nest = _reduction_of(_summing(jk=None))
    try:
        predicate = impl.last_step(nest)
    except s_tir.ScheduleError as error:
        what = "Your refusal names neither a block nor a loop."
        expected = "a ScheduleError from `reduction_loops` or `require`"
        expect.that("`" in str(error), what, expected=expected, yours=str(error))
        return
    moments = _moments(nest, predicate)
    if moments != {point: [5] for point in itertools.product(range(6), range(5))}:
        what = "One loop drives columns and steps together, and your predicate is not true once per element."
        expected = "a ScheduleError, or a predicate that is right"
        raise LAST.failed(what, expected=expected, yours=str(predicate))


def test_7_3_a_mixed_bound_is_refused(impl) -> None:
    """a bound on a spatial axis and the reduction together is refused"""

    @T.prim_func(s_tir=True)
    def triangle(A: T.Buffer((6, 5), "int32"), D: T.Buffer((6,), "int32")):
        temp = T.sblock_alloc_buffer((6,), "int32")
        for i, k in T.grid(6, 5):
            with T.sblock("matmul"):
                vi, vk = T.axis.remap("SR", [i, k])
                T.where(i + k < 4)
                with T.init():
                    temp[vi] = 0
                temp[vi] = temp[vi] + A[vi, vk]
        for i in range(6):
            with T.sblock("bias"):
                wi = T.axis.spatial(6, i)
                D[wi] = T.max(temp[wi], 0)

    nest = _reduction_of(s_tir.Schedule(triangle))
    try:
        predicate = impl.last_step(nest)
    except s_tir.ScheduleError:
        return
    if _moments(nest, predicate) != {(i,): [4 - i] for i in range(4)}:
        raise LAST.failed(
            "The reduction runs where i + k < 4, and your predicate is not true once for each row that has a step.",
            expected="a ScheduleError, or a predicate that is right",
            yours=str(predicate),
            why="This part of the predicate mentions both kinds of loops. It cannot be dropped, because rows 4 and 5 "
            "have no step at all. It cannot be kept, because it is false in the last iteration of most rows.",
        )


def observe_7_3(impl):
    def seen(name: str) -> str:
        nest = _reduction_of(_summing(**NESTS[name]))
        return str(sorted(_moments(nest, impl.last_step(nest)).items()))

    return [partial(seen, name) for name in NESTS]


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
HARMLESS = (
    *("a plain bias", "the bias read in between", "the sums read in between", "relu"),
    *("the bias written before", "the bias written afterwards", "the output read afterwards"),
    "added to the output",
)
OF_OTHER_KINDS = ("two biases", "a bias minus the sum", "a maximum", "read transposed")


def _between(impl, name: str) -> str:
    """What check_between says of a hard case: "" or its sentence."""
    sch = s_tir.Schedule(CASES[name].func)
    pair = reference.match(sch, sch.get_sblock("matmul"), sch.get_sblock("bias"))
    try:
        impl.check_between(sch, pair)
    except s_tir.ScheduleError as error:
        return str(error)
    return ""


def test_7_4_refuses_who_would_notice(impl) -> None:
    """a block in between that notices the fusion is refused, and the refusal names the buffer"""
    for name, buffer in CLASHES.items():
        said = _between(impl, name)
        what = f"Your check_between accepts a program that it must refuse: {name}."
        yours = "no refusal, for the program\n" + CASES[name].text
        why = (
            f"Look at {buffer} in this program. Fused, the epilogue runs as soon as a sum is done: before the blocks "
            "between the two, and while the reduction still computes other sums."
        )
        BETWEEN.that(bool(said), what, expected="a ScheduleError", yours=yours, why=why)
        BETWEEN.that(
            re.search(rf"\b{buffer}\b", said.partition("cannot be fused:")[2]),
            f"Your check_between refuses this program, and does not name the buffer {buffer}: {name}.",
            expected=f"a sentence that names {buffer}, from `buffer.name`",
            yours=said,
            why="The reader of a refusal must know what to move out of the way. Here a block writes or uses "
            f"{buffer}. A block that only reads what the epilogue reads is no reason to refuse.",
        )


def test_7_4_allows_who_would_not(impl) -> None:
    """readers of the sums and of the bias, and blocks before and after the two, are accepted"""
    for name in HARMLESS:
        said = _between(impl, name)
        what = f"Your check_between refuses a program in which no block notices the fusion: {name}."
        wanted = "no refusal"
        why = "Two reads of one buffer may change places. Refusing a harmless program is safe, but the fusion is lost."
        BETWEEN.that(not said, what, expected=wanted, yours=said + "\n" + CASES[name].text, why=why)


def test_7_4_whole_programs(impl) -> None:
    """fuse_epilogue, with your parts in it, is right or refuses on hard cases of every kind"""
    for name in (*CLASHES, *HARMLESS, *OF_OTHER_KINDS):
        mod, how = side_by_side.fused(CASES[name], impl.fuse_epilogue)
        came = side_by_side.outcome(CASES[name], mod)
        what = f"With your functions, fuse_epilogue is wrong on the hard case “{name}”: {came}."
        expected = "the same numbers as unfused, or a ScheduleError"
        BETWEEN.that(came in ("right", "refused"), what, expected=expected, yours=f"{how}\n{mod}")


def observe_7_4(impl):
    return [lambda name=name: bool(_between(impl, name)) for name in (*CLASHES, *HARMLESS)]


# --- 7.5: counterexamples -------------------------------------------------------------------------


def _tried(name: str, condition: str) -> tuple[str, str, str]:
    """What comes of a hard case with the whole guard, and without one condition; and what was said without it."""
    case = CASES[name]
    whole, _ = side_by_side.judge(case, reference.fuse_epilogue)
    with search.left_out(reference, condition):
        return (whole, *side_by_side.judge(case, reference.fuse_epilogue))


def test_7_5_each_condition_has_its_case(impl) -> None:
    """without one condition, the case that you chose for it goes wrong"""
    chosen = impl.counterexamples()
    what = "The keys of your dict are not the five conditions that the docstring names."
    expect.equal(sorted(chosen), sorted(search.CONDITIONS), what)
    unknown = [name for name in chosen.values() if name not in CASES]
    expected = "names from chapters/kit/cases/hard_cases.py; `sorted(CASES)` lists them"
    expect.that(not unknown, f"No hard case is called {unknown}.", expected=expected)
    tried = {condition: _tried(chosen[condition], condition) for condition in search.CONDITIONS}
    lines = [
        f"“{condition}”, “{chosen[condition]}”: with all conditions {whole}; without this one {without} ({said})"
        for condition, (whole, without, said) in tried.items()
        if without not in side_by_side.BAD
    ]
    REFUSE.that(
        not lines,
        f"{len(lines)} of the {len(tried)} cases do not go wrong without their condition.",
        expected="a case that is fused when only this condition is left out, and then gives wrong numbers or invalid "
        "TensorIR",
        yours="\n".join(lines),
        why="A program that goes wrong without a condition shows what the condition is for. If it is still refused, "
        "another condition refuses it too. If it is right, the condition does not matter to it.",
    )


def observe_7_5(impl):
    def seen(condition: str) -> str:
        return " ".join(_tried(impl.counterexamples()[condition], condition)[:2])

    return [partial(seen, condition) for condition in search.CONDITIONS]


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


def _broken(impl) -> tuple[str, str, str]:
    """The built-in's outcome, ours and the way, for the learner's case."""
    case = impl.breaks_the_builtin()
    expected = "Case(cause, name, value=…) of chapters.kit.cases.hard_cases"
    expect.returns(case, Case, "breaks_the_builtin", "a Case", expected=expected)
    _parsed(case)
    builtin, _ = side_by_side.judge(case, side_by_side.fuse_with_builtin)
    return (builtin, *side_by_side.judge(case, reference.fuse_epilogue))


def _parsed(case: Case) -> None:
    """TVM's parser takes the program of `case`, or the check fails with what it says."""
    try:
        case.func  # noqa: B018
    except Exception as error:
        what = f"TVM's parser refuses the program of your Case: {parser_said(error)}"
        expected = "TVMScript in its fields: `s` for the sum, `C[wi, wj]` for an operand, `T.max` and not `max`"
        why = "The fields of a Case are text, and become part of the program as they are."
        raise BREAK.failed(what, expected=expected, yours=case.text, why=why) from None


def test_7_6_the_builtin_is_wrong_and_ours_right(impl) -> None:
    """the built-in gets your program wrong, and fuse_epilogue gets it right"""
    builtin, ours, how = _broken(impl)
    known = {case.text for case in CASES.values()}
    what = f"The built-in {DOES[builtin]} your program."
    expected = "a program that the built-in fuses, and that then gives other numbers"
    why = "The built-in drops the addend beside the sum from the step, and applies the rest of f at every step."
    BREAK.that(builtin in ("wrong", "outside its arrays"), what, expected=expected, why=why)
    what = f"fuse_epilogue {DOES[ours]} your program."
    expected = "a program that `fuse_epilogue` fuses, in any of its ways"
    why = "The exercise asks for a program that can be fused soundly, and that the built-in gets wrong."
    BREAK.that(ours == "right", what, expected=expected, yours=how, why=why)
    what = "Your program is one of the hard cases already."
    expect.that(impl.breaks_the_builtin().text not in known, what, expected="one of your own")


def observe_7_6(impl):
    return [lambda: _broken(impl)[0], lambda: _broken(impl)[1]]


# --- 7.7: draw_case -------------------------------------------------------------------------------

LOOKED_AT = 40  # programs of the generator, on which the whole guard is tried
BREAKS = {
    "each point once": "The epilogue runs at points where it did not run before, or twice at one point.",
    "nobody between": "A block between the two sees other values, or writes too late.",
    "own element": "The epilogue reads a neighbour of the element that it writes, and the fused loops finish the "
    "neighbours in another order.",
    "sums unseen": "Another block reads sums that no longer exist.",
    "order of rounding": "16-bit sums overflow, or lose their steps.",
}


def _programs(impl, count: int) -> list[Case]:
    """The first programs of the learner's generator."""
    cases = [search.drawn(impl.draw_case, number) for number in range(count)]
    expected = "Case(cause, name, value=…) of chapters.kit.cases.hard_cases"
    for case in cases:
        expect.returns(case, Case, "draw_case", "a Case", expected=expected)
    return cases


def test_7_7_draws_programs(impl) -> None:
    """your generator draws many different programs"""
    cases = _programs(impl, LOOKED_AT)
    for case in cases:
        _parsed(case)
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
    for case in _programs(impl, LOOKED_AT):
        came, how = side_by_side.judge(case, impl.fuse_epilogue)
        what = f"Your own fuse_epilogue, with its whole guard, {DOES[came]} a program of your generator."
        expected = "the numbers of the unfused program, or a refusal"
        why = "One of your functions of 7.1 to 7.4 may have a fault that their checks do not see."
        yours = f"{how}\n{case.text}"
        BREAK.that(came in ("right", "refused"), what, expected=expected, yours=yours, why=why)
        right += came == "right"
    BREAK.that(
        right >= LOOKED_AT // 5,
        f"Your fuse_epilogue refuses {LOOKED_AT - right} of {LOOKED_AT} programs of your generator.",
        expected=f"at least {LOOKED_AT // 5} that are fused",
        why="A program with three things wrong is refused for each of them. If one condition is left out, another one "
        "still refuses it, so such programs find nothing.",
    )


def _first_wrong(cases: list[Case], fuse) -> search.Wrong | None:
    """The first of `cases` that `fuse` gets wrong."""
    for case in cases:
        _parsed(case)
        if wrong := search.goes_wrong(case, fuse):
            return wrong
    return None


def test_7_7_finds_each_fault(impl) -> None:
    """with any one condition left out of your guard the search finds a wrong program, and one for chapter 6"""
    cases = _programs(impl, search.DRAWS)
    for condition in search.CONDITIONS:
        with search.left_out(impl, condition):
            wrong = _first_wrong(cases, impl.fuse_epilogue)
        what = f"Without “{condition}”, your fuse_epilogue is right on {search.DRAWS} programs of your generator."
        expected = (
            "a program that is fused when only this condition is left out, and then goes wrong"
        )
        BREAK.that(wrong is not None, what, expected=expected, why=BREAKS[condition])
    wrong = _first_wrong(cases, ch6.fuse_reduction_epilogue)
    what = f"Chapter 6's primitive is right on {search.DRAWS} programs of your generator."
    expected = "a program that it fuses and gets wrong"
    BREAK.that(wrong is not None, what, expected=expected, why=BREAKS["order of rounding"])


def observe_7_7(impl):
    def says(fact) -> bool:
        return fact(_programs(impl, LOOKED_AT))

    def large(case: Case) -> bool:
        return any(abs(number) >= 1024 for number in case.fill.values())

    def odd(case: Case) -> int:
        usual = Case(case.cause, case.name)
        return sum(getattr(case, one) != value for one, value in vars(usual).items())

    return [
        partial(says, lambda cases: len({case.loops for case in cases}) > 1),
        partial(says, lambda cases: any(map(large, cases))),
        partial(says, lambda cases: any(case.between or case.after for case in cases)),
        partial(says, lambda cases: min(map(odd, cases)) >= 3),
    ]
