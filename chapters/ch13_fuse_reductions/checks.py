"""The judge of chapter 13: programs drawn at random, the smallest on which the answer is wrong, and then attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.ir import TensorLoad
from tvm.s_tir import ScheduleError
from tvm.tirx import BufferStore

from chapters.ch13_fuse_reductions import attention
from chapters.ch13_fuse_reductions.check_programs import (
    REFUSED,
    Program,
    arrays,
    expected,
    plain_fused,
    plain_refused,
    rows_without_maximum,
    schedule,
    to_fuse,
    to_refuse,
)
from chapters.checking.draws import find_smallest
from chapters.checking.expect import Section
from chapters.checking.programs import listing
from chapters.checking.time_limit import DidNotEnd, TookTooLong, limit_time
from chapters.child import patience
from chapters.kit.bench.timing import time_call
from chapters.kit.cases.guard_zones import compile_once, run_compiled
from chapters.kit.ir.tensor_ir import loads, nodes
from chapters.kit.machine import llvm_host
from chapters.runner.failure import CheckFailed
from chapters.runner.loading import last_line, locate_error

LESSON = "chapters/ch13_fuse_reductions/lesson.md"
SPECIFICATION = Section(LESSON, "What it must do")
REFUSE = Section(LESSON, "When it must not fire")
NUMBERS = Section(LESSON, "A row of four, on paper")
LIMITS = {
    "test_13_1_what_it_must_fuse": 240,
    "test_13_1_what_it_must_refuse": 240,
    "test_13_1_attention_stores_no_scores": 60,
    "test_13_1_attention_is_not_slower": 90,
}
SECONDS = 4.0 * patience()  # for one call of an answer
DRAWS = 60
SLOWER = 3.0  # the fused attention may take this many times as long as the unfused one: 2.1 with two exps per step
WHOSE = "Your fuse_reductions"
MAKES = "The attention that your fuse_reductions makes"


# --- one program ----------------------------------------------------------------------------------


def _show(sch: s_tir.Schedule) -> str:
    try:
        return listing(sch.mod["main"])
    except Exception as error:
        return f"(a module that cannot be printed: {last_line(error)})"


def _fail(program: Program, sch: s_tir.Schedule | None, said: str, section=SPECIFICATION, **more):
    """The failure, with the program and, if the answer has changed it, what it has become."""
    parts = [
        more.pop("yours", ""),
        f"the program ({program.about or 'the plainest'}):",
        _show(schedule(program)),
    ]
    if sch is not None:
        parts += ["after your primitive:", _show(sch)]
    kind = more.pop("kind", CheckFailed)
    return kind(f"{WHOSE} {said}.", yours="\n".join(filter(None, parts)), read=str(section), **more)


def _call(
    impl, sch: s_tir.Schedule, program: Program, blocks: Sequence[str] = ()
) -> CheckFailed | ScheduleError | None:
    """Fuse `blocks`, by default the sums of `program`, one after the other. Returns a refusal or failure, or None."""
    try:
        with limit_time(SECONDS):
            for block in blocks or program.seconds:
                impl.fuse_reductions(sch, "maximum", block)
    except ScheduleError as refusal:
        return refusal
    except NotImplementedError:
        raise
    except TookTooLong:
        said = f"did not end within {SECONDS:g} s"
        return _fail(program, None, said, kind=DidNotEnd, expected="a few milliseconds")
    except CheckFailed as failure:
        return failure
    except Exception as error:
        said, place = f"raised {last_line(error)}", locate_error(error, impl._path)
        return _fail(program, None, said, yours=place, expected="no exception but ScheduleError")
    return None


def look_at_fused(impl, program: Program) -> CheckFailed | None:
    """What is wrong with the answer on a program that it must fuse; None if nothing is."""
    sch = schedule(program)
    handles = [sch.get_sblock("maximum"), *sch.get_loops("maximum")]
    said = _call(impl, sch, program)
    if isinstance(said, CheckFailed):
        return said
    if said is not None:
        expected = "one loop for the maximum and the sum"
        return _fail(
            program,
            None,
            "refuses a program that it must fuse",
            yours=last_line(said),
            expected=expected,
        )
    return (
        _check_schedule(program, sch, handles)
        or _check_declared(program, sch)
        or _check_one_loop(program, sch)
        or _check_numbers(program, sch)
    )


def _check_schedule(program: Program, sch: s_tir.Schedule, handles: list) -> CheckFailed | None:
    """Whether the result is a schedule that other primitives can go on with."""
    why = "Other primitives go on from what this one leaves."
    try:
        again = s_tir.Schedule(sch.mod)
        block, *_ = found = [sch.get(handle) for handle in handles]
        same = tvm_ffi.structural_equal(block, again.get(again.get_sblock("maximum")))
        same = same and len(found) == 1 + len(sch.get_loops("maximum"))
    except Exception as error:
        expected = "a well-formed function with a block `maximum` in it"
        said = "leaves a schedule that is not whole"
        return _fail(program, sch, said, yours=last_line(error), expected=expected, why=why)
    if not same:
        said = "leaves a schedule whose handles do not find what is in its module"
        return _fail(
            program, sch, said, expected="`sch.state.replace` of what has changed", why=why
        )
    return None


def _check_declared(program: Program, sch: s_tir.Schedule) -> CheckFailed | None:
    """Whether the block says of each buffer that it reads or writes."""
    block = sch.get(sch.get_sblock("maximum"))
    parts = [block.body, *([block.init] if block.init is not None else [])]
    used = {
        "T.reads": {load.source.name for load in nodes(parts, TensorLoad)},
        "T.writes": {store.buffer.name for store in nodes(parts, BufferStore)},
    }
    declared = {"T.reads": block.reads, "T.writes": block.writes}
    for word, names in used.items():
        # what the block itself writes needs no T.reads
        known = {region.source.name for region in [*declared[word], *block.writes]}
        if left := sorted(names - known):
            said = f"makes a block that uses {', '.join(left)}, and its {word} does not say so"
            why = "Primitives and TVM's passes go by what a block declares."
            return _fail(program, sch, said, expected=f"{word} with {', '.join(left)}", why=why)
    return None


def _check_one_loop(program: Program, sch: s_tir.Schedule) -> CheckFailed | None:
    """Whether every x is read in the loops of the maximum, apart from the blocks that have nothing to do with it."""
    loop = sch.get(sch.get_loops("maximum")[-1])
    func = sch.mod["main"]
    buffer = next(b for b in func.params if b.name == "X")
    bystanders = [b for b in nodes(func.body, s_tir.SBlock) if b.name_hint in ("between", "after")]
    inside, others = len(loads(loop, buffer)), sum(len(loads(b, buffer)) for b in bystanders)
    left = len(loads(func.body, buffer)) - inside - others
    if left:
        said = "leaves a second loop over the elements of X"
        why = "The loop of the maximum must make the sums too, so that an element is needed only once."
        return _fail(program, sch, said, expected="all of X read in the loop of `maximum`", why=why)
    return None


def _check_numbers(program: Program, sch: s_tir.Schedule) -> CheckFailed | None:
    given = arrays(program)
    try:
        results = run_compiled(sch.mod, list(given.values()))
    except Exception as error:
        said = "makes a program that does not compile or run"
        return _fail(program, sch, said, yours=last_line(error), expected="numbers")
    yours = dict(zip(given, results, strict=True))
    wanted, empty = expected(program, given), rows_without_maximum(program, given)
    unknown = np.isnan(wanted["M"])
    for name, right in wanted.items():
        if (place := _find_wrong(name, yours[name], right, unknown, empty)) is None:
            continue
        x = given["X"].T if program.x == "transposed" else given["X"]
        row = ", ".join(f"{v:g}" for v in x[place[0]])
        said = f"gives another `{name}[{', '.join(map(str, place))}]`"
        return _fail(
            program,
            sch,
            said,
            NUMBERS,
            expected=f"{right[place]:.6g}, which NumPy computes in float64"
            + (", or 0" if empty[place[0]] and name in ("S", "W") else ""),
            yours=f"{yours[name][place]:.6g}; the row of X is {row}",
            why="The fused program may round differently, and nothing else. Results hold 77 at first.",
        )
    return None


def _find_wrong(name: str, yours, right, unknown, empty) -> tuple[int, ...] | None:
    """The first element that is wrong; None if all are right.

    unknown: the rows with a NaN, whose maximum depends on the order. empty: the rows whose elements are all -inf.
    """
    for place in np.ndindex(right.shape):
        a, b = float(yours[place]), float(right[place])
        if unknown[place[0]] and name not in ("S", "W"):
            continue
        if np.isnan(b):
            fine = np.isnan(a) or (a == 0 and empty[place[0]] and name in ("S", "W"))
        else:
            fine = a == b or abs(a - b) <= 1e-5 + 1e-4 * abs(b)
        if not fine:
            return place
    return None


def look_at_refused(impl, program: Program) -> CheckFailed | None:
    """What is wrong with the answer on a program that it must refuse; None if nothing is."""
    sch = schedule(program)
    *earlier, last = program.seconds
    said = _call(impl, sch, program, earlier) if earlier else None
    before = sch.mod
    said = said or _call(impl, sch, program, [last])
    if isinstance(said, CheckFailed):
        return said
    same = tvm_ffi.structural_equal(before, sch.mod)
    why = REFUSED[program.refused]
    if said is not None:
        if same:
            return None
        what = "refuses, and leaves the schedule changed"
        why = "Decide before you change anything."
        return _fail(program, sch, what, REFUSE, expected="the schedule as it was", why=why)
    if same:
        what = f"neither fuses nor refuses {_describe_refused(program)}"
        return _fail(
            program, None, what, REFUSE, expected="a ScheduleError with the reason", why=why
        )
    what = f"fuses {_describe_refused(program)}"
    found = _compare_runs(program, sch)
    return _fail(
        program, sch, what, REFUSE, expected="a ScheduleError with the reason", why=why, yours=found
    )


def _describe_refused(program: Program) -> str:
    return f"a program that it must refuse ({program.refused})"


def _compare_runs(program: Program, sch: s_tir.Schedule) -> str:
    """One element that the fused and the unfused program give differently; "" if no result of one run differs."""
    given = arrays(program)
    try:
        fused, unfused = (
            run_compiled(mod, list(given.values())) for mod in (sch.mod, schedule(program).mod)
        )
    except Exception as error:
        return f"what it makes does not compile or run: {last_line(error)}"
    for name, a, b in zip(given, fused, unfused, strict=True):
        if (
            place := _find_wrong("S", a, b, np.zeros(len(a), bool), np.zeros(len(a), bool))
        ) is not None:
            at = ", ".join(map(str, place))
            return (
                f"unfused, `{name}[{at}]` is {float(b[place]):.6g}, and fused {float(a[place]):.6g}"
            )
    return ""


# --- 13.1 -----------------------------------------------------------------------------------------


def _judge(look, impl, programs, plain=()) -> None:
    """Raise the failure of the first of `plain`, or on the smallest of `programs` on which there is one."""
    if not hasattr(impl._module, "fuse_reductions"):
        raise NotImplementedError("exercise 13.1")
    failure = next(filter(None, (look(impl, program) for program in plain)), None)
    failure = failure or find_smallest(
        programs,
        partial(look, impl),
        lambda program: program.size,
        draws=DRAWS,
        tries=50,
        hangs=2,
        is_hang=lambda failure: isinstance(failure, DidNotEnd),
    )
    if failure is not None:
        raise failure


def test_13_1_what_it_must_fuse(impl) -> None:
    """it makes one loop of a maximum and its sums, with the same numbers"""
    _judge(look_at_fused, impl, to_fuse(), plain_fused())


def test_13_1_what_it_must_refuse(impl) -> None:
    """it refuses what is no rescaling, and leaves the schedule as it was"""
    _judge(look_at_refused, impl, to_refuse(), plain_refused())


def test_13_1_attention_stores_no_scores(impl) -> None:
    """attention has right numbers, and memory for one score instead of all"""
    for sizes in ((1, 1, 1, 1), (2, 3, 2, 2), (5, 7, 3, 4), (3, 16, 4, 1)):
        sch = _fuse_attention(impl, sizes)
        q, k, v = attention.draw_inputs(*sizes, seed=1)
        out = np.full((sizes[0], sizes[3]), 77, "float32")
        *_, yours = run_compiled(sch.mod, [q, k, v, out])
        NUMBERS.close(
            yours,
            attention.compute_exact(q, k, v),
            f"{MAKES}, of {_name_sizes(sizes)}, gives other numbers.",
            rtol=1e-4,
        )
    rows, keys, depth, width = 4, 64, 8, 8
    few, many = (
        attention.allocated(_fuse_attention(impl, (rows, n, depth, width)))
        for n in (keys, 2 * keys)
    )
    SPECIFICATION.that(
        few == many,
        f"{MAKES} needs more memory for more keys.",
        expected=f"{few} bytes between its blocks for {keys} keys and for {2 * keys}",
        yours=f"{few} and {many} bytes",
        why="A score that is made in the step that uses it needs no place of its own for each key.",
    )


def _name_sizes(sizes) -> str:
    return "{} rows, {} keys, depth {} and width {}".format(*sizes)


def _fuse_attention(impl, sizes) -> s_tir.Schedule:
    try:
        with limit_time(4 * SECONDS):
            return attention.fuse_attention(*sizes, impl)
    except (NotImplementedError, CheckFailed):
        raise
    except TookTooLong:
        raise SPECIFICATION.failed(
            f"{WHOSE} did not end on attention of {_name_sizes(sizes)}.",
            expected="a few milliseconds",
        ) from None
    except Exception as error:
        raise SPECIFICATION.failed(
            f"Attention of {_name_sizes(sizes)} cannot be fused: {last_line(error)}",
            expected='`fuse_reductions` with "total" and with "weighted", and then `compute_at` of the scores',
            why="compute_at needs a block `maximum` that declares what it reads, and no other reader of the scores.",
        ) from None


def test_13_1_attention_is_not_slower(impl) -> None:
    """the fused attention takes at most twice as long as the unfused one"""
    sizes = (32, 1024, 64, 64)
    q, k, v = attention.draw_inputs(*sizes, seed=2)
    calls = {}
    for name, sch in (
        ("fused", _fuse_attention(impl, sizes)),
        ("unfused", attention.unfused(*sizes)),
    ):
        kernel = compile_once(sch.mod, llvm_host()["target"])["main"]
        out = tvm.runtime.tensor(np.full((sizes[0], sizes[3]), 77, "float32"))
        tensors = [*map(tvm.runtime.tensor, (q, k, v)), out]
        calls[name] = partial(kernel, *tensors)
        calls[name]()
        right = attention.compute_exact(q, k, v)
        NUMBERS.close(
            out.numpy(),
            right,
            f"The {name} attention of {_name_sizes(sizes)} gives other numbers.",
            rtol=1e-3,
        )
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(7):
        for name, call in calls.items():
            taken[name].append(time_call(call, 1))
    fused, unfused = (min(taken[name]) for name in ("fused", "unfused"))
    SPECIFICATION.that(
        fused <= SLOWER * unfused,
        f"{MAKES} takes {fused / unfused:.1f} times as long as the unfused one.",
        expected=f"at most {SLOWER:g} times, for {_name_sizes(sizes)}",
        yours=f"{fused * 1e3:.3g} ms; unfused {unfused * 1e3:.3g} ms",
        why="A step needs one exp, for the weight. The factor is 1 unless the maximum rises.",
    )


# --- what an answer does, for the diagnosis -------------------------------------------------------

SEEN = (
    Program(),
    Program(length=3, numbers="rising"),
    Program(length=3, numbers="falling"),
    Program(length=3, numbers="-inf first"),
    Program(length=3, numbers="nan"),
    Program(length=3, numbers="+inf"),
    Program(length=2, numbers="all -inf"),
    Program(length=3, width=2, sums="weighted", numbers="rising"),
    Program(length=3, width=2, sums="both", numbers="rising"),
    Program(rows=3, length=5, numbers="large", loops="first split"),
    Program(rows=2, length=3, numbers="falling", init="smallest", loops="second turned"),
)


def observe_13_1(impl):
    """What it does on programs to be fused, and which of those to be refused it refuses."""

    def results(program: Program) -> str:
        sch = schedule(program)
        impl_said = _call(impl, sch, program)
        if impl_said is not None:
            return f"{type(impl_said).__name__}"
        found = run_compiled(sch.mod, list(arrays(program).values()))
        return str([np.round(array.astype("float64"), 3).tolist() for array in found])

    def refusal(program: Program) -> str:
        sch, before = schedule(program), schedule(program).mod
        said = type(_call(impl, sch, program)).__name__
        return f"{said} {tvm_ffi.structural_equal(before, sch.mod)}"

    return [*(partial(results, p) for p in SEEN), *(partial(refusal, p) for p in plain_refused())]
