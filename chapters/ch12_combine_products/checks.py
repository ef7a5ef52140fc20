"""The checks of chapter 12: CombineProducts, on programs by hand and on programs that are drawn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from chapters.ch12_combine_products.check_programs import CASES, MUST, STAYS, layer, programs
from chapters.ch12_combine_products.costs import constant_bytes, count_launches, lower
from chapters.checking import expect
from chapters.checking.expect import Section
from chapters.checking.judge import observe_pass
from chapters.checking.judge_programs import Look, failure_on, in_time, judge_on_draws
from chapters.checking.relax_modules import Module
from chapters.kit.cases.guard_zones import compile_once
from chapters.kit.machine import llvm_host
from solutions.ch09_the_compiler.pipeline import fusion_pipeline

LESSON = "chapters/ch12_combine_products/lesson.md"
SPECIFICATION = Section(LESSON, "Specification")
MEASURED = Section(LESSON, "What is measured")
NOT_FIRE = Section(LESSON, "When it must not fire")

LIMITS = {
    "test_12_1_fires": 60,
    "test_12_1_is_right_on_every_program": 240,
    "test_12_1_is_no_slower": 120,
}
DRAWS = 60
WHOSE = "CombineProducts"
ROWS = (1, 4, 16, 64, 512)
ROUNDS, SLOWER, TRIES = 9, 1.25, 3
TARGET = llvm_host()["target"]
PIPELINE = fusion_pipeline(TARGET)


def _pass(impl) -> Callable[[tvm.IRModule], object]:
    """The pass of an answer, made once; a file without it is not begun."""
    if not hasattr(impl._module, "CombineProducts"):
        raise NotImplementedError("exercise 12.1")
    return impl.CombineProducts()


# --- what it costs --------------------------------------------------------------------------------


def costs_no_more(
    before: tvm.IRModule, after: tvm.IRModule, section: Section = MEASURED
) -> tuple[int, int]:
    """Return how many kernels `before` and `after` launch, compiled.

    Raises CheckFailed if `after` launches more, or keeps more bytes of constants. section: where to read on.
    """
    old, new = lower(before), lower(after)
    counts = count_launches(old), count_launches(new)
    section.that(
        counts[1] <= counts[0],
        f"After {WHOSE}, the compiled program launches {counts[1]} kernels, and {counts[0]} without it.",
        expected=f"at most {counts[0]} launches",
        why="The pass is there to save launches. Where it cannot, it leaves the products alone.",
    )
    sizes = constant_bytes(old), constant_bytes(new)
    section.that(
        sizes[1] <= sizes[0],
        f"After {WHOSE}, the compiled program holds {sizes[1]} bytes of constants, and {sizes[0]} without it.",
        expected=f"at most {sizes[0]} bytes",
        why="A weight that is stacked and also kept as it was is in memory twice, and a dead product's weight would "
        "not be there at all.",
    )
    return counts


# --- 12.1 the pass --------------------------------------------------------------------------------


def _judge(transform, path: Path, title: str, case: Module, read: Section, costs: Look) -> None:
    """Raise the failure of a pass on a case. path: its file; read: where to read on; costs: looks at both programs."""
    title = f"The program, with {title}"
    failure = failure_on(transform, case, WHOSE, path, costs=costs, read=read, title=title)
    if failure:
        raise failure


def test_12_1_fires(impl) -> None:
    """three products of one tensor and three known weights become two kernels"""
    transform = _pass(impl)
    for title in MUST:
        case, found = CASES[title](), []

        def note(old, new, found=found) -> None:
            found.append(costs_no_more(old, new))

        _judge(transform, impl._path, title, case, SPECIFICATION, note)
        counts = found[0] if found else [count_launches(lower(case.mod))] * 2  # nothing has changed
        what = f"{WHOSE} saves no launch in a program that it must change: {title}."
        SPECIFICATION.that(
            counts[1] < counts[0],
            what,
            expected=f"fewer than {counts[0]} launches of kernels after chapter 9's pipeline",
            yours=f"{counts[1]} launches\n\n{expect.script(case.mod)}",
        )


def test_12_1_leaves_the_rest(impl) -> None:
    """each case in which it must not fire gives the same numbers, at no more cost"""
    transform, costs = _pass(impl), partial(costs_no_more, section=NOT_FIRE)
    for title in STAYS:
        _judge(transform, impl._path, title, CASES[title](), NOT_FIRE, costs)


def test_12_1_is_right_on_every_program(impl) -> None:
    """random programs give NumPy's numbers and cost no more; the smallest that does not is shown"""
    judge_on_draws(
        _pass(impl),
        programs(),
        WHOSE,
        impl._path,
        draws=DRAWS,
        costs=costs_no_more,
        read=SPECIFICATION,
    )


def test_12_1_is_no_slower(impl) -> None:
    """at each number of rows that chapter 9 measures, the compiled program takes no longer"""
    transform = _pass(impl)
    given = layer(ROWS)
    machines = [
        relax.VirtualMachine(compile_once(mod, TARGET, relax_pipeline=PIPELINE), tvm.cpu())
        for mod in (given, transform(given.clone()))
    ]
    for rows in ROWS:
        x = tvm.runtime.tensor(np.random.default_rng(rows).standard_normal((rows, 256), "float32"))
        calls = [lambda vm=vm, rows=rows, x=x: vm[f"rows_{rows}"](x) for vm in machines]
        for old, new in zip(*(call() for call in calls), strict=True):
            what = f"{WHOSE} changes the numbers of a layer with {rows} rows."
            MEASURED.close(new.numpy(), old.numpy(), what, rtol=1e-4, atol=1e-3)
        ratio = min(_ratio(*calls) for _ in range(TRIES))
        MEASURED.that(
            ratio <= SLOWER,
            f"After {WHOSE}, three products of {rows} row{'s' * (rows > 1)} take {ratio:.2f} times as long as "
            "without it.",
            expected=f"at most {SLOWER} times as long, in the best of {TRIES} measurements",
            why="There are two usual causes. The combined weight is stored in another layout than the weights were, "
            "so that another, slower kernel reads it. Or the module copies the weights at each call, where the pass "
            "could have stacked them once. If neither is so, the machine may have been busy: check again.",
        )


def _ratio(old: Callable[[], object], new: Callable[[], object]) -> float:
    """How many times as long `new` takes as `old`: both in turns, the median of each."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(ROUNDS):
        for call, taken in zip((old, new), times, strict=True):
            call()
            start = time.perf_counter()
            for _ in range(3):
                call()
            taken.append(time.perf_counter() - start)
    return statistics.median(times[1]) / statistics.median(times[0])


def observe_12_1(impl):
    def make() -> Callable[[tvm.IRModule], object]:
        return partial(in_time, _pass(impl), seconds=1)  # it may be endless on many of them

    return observe_pass(make, *(case().mod for case in CASES.values()), runs=False)
