"""Judges a module pass on programs that are drawn at random, and reports the smallest on which it is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from hypothesis.strategies import SearchStrategy
from tvm import relax
from tvm.relax import transform as passes
from tvm.relax.backend.cpu_generic.pipeline import dataflow_lower_passes, finalize_passes

from chapters.checking import expect
from chapters.checking.draws import find_smallest
from chapters.checking.judge import SAME_NUMBERS
from chapters.checking.relax_modules import Module
from chapters.checking.time_limit import DidNotEnd, TookTooLong, limit_time
from chapters.child import patience
from chapters.kit.cases.guard_zones import QUICK, compile_once
from chapters.kit.ir.relax_effects import bindings_of, relax_functions, scopes
from chapters.kit.passes.plan_straight_functions import PlanStraightFunctions
from chapters.runner.failure import CheckFailed
from chapters.runner.loading import last_line, locate_error

SECONDS = 3  # for one program; a pass takes a few milliseconds
# of the largest number of a result, by the shortest dtype of a program: a dozen roundings in a row
RELATIVE = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}
MOST_NUMBERS = 24  # of a result that is shown whole
Look = Callable[[tvm.IRModule, tvm.IRModule], None]  # at the program before and after


def judge_on_draws(
    transform: Callable[[tvm.IRModule], object],
    programs: SearchStrategy[Module],
    whose: str,
    path: Path,
    *,
    draws: int,
    costs: Look,
    read: str,
) -> None:
    """Raise the failure on the smallest of `programs` that is found on which `transform` is wrong.

    Of each program: does the pass end, without an exception, and return a module; is the module that it was given
    unchanged; is the result well-formed, with the same public functions; are the numbers of main NumPy's, in two runs;
    does a second run of the pass change nothing more; and then `costs`. whose: the name of the pass. path: the file
    with it.
    """

    def failure_of(program: Module) -> CheckFailed | None:
        said = "The smallest program on which this was found"
        return failure_on(transform, program, whose, path, costs=costs, read=read, title=said)

    failure = find_smallest(
        programs,
        failure_of,
        lambda program: len(program.mod.script().splitlines()),
        draws=draws,
        is_hang=lambda one: isinstance(one, DidNotEnd),
    )
    if failure:
        raise failure


def failure_on(
    transform: Callable[[tvm.IRModule], object],
    program: Module,
    whose: str,
    path: Path,
    *,
    costs: Look,
    read: str,
    title: str = "The program",
) -> CheckFailed | None:
    """What `judge_on_draws` says of one program, which is part of the message; None if nothing is wrong."""
    results: list[tvm.IRModule] = []
    try:
        _judge(transform, program, whose, costs, read, results)
        return None
    except NotImplementedError:
        raise
    except TookTooLong:
        failed: CheckFailed = DidNotEnd(
            f"{whose} did not finish within {_seconds():g} s and was stopped, on a program of "
            f"{_describe_length(program.mod)}.",
            expected="a few milliseconds",
            why="A loop that never ends, or recursion into the same node, looks like this.",
            read=read,
        )
    except CheckFailed as error:
        failed = error
    except Exception as error:
        failed = CheckFailed(
            f"{whose} raised {last_line(error)}",
            expected="no exception: a pass leaves alone what it cannot change",
            yours=locate_error(error, path),
            read=read,
        )
    failed.failure.yours += _show(title, program.mod)
    failed.failure.yours += "".join(_show("The same after the pass", one) for one in results)
    failed.failure.yours = failed.failure.yours.strip()
    return failed


def _seconds() -> float:
    return math.ceil(SECONDS * patience())


def in_time(
    transform: Callable[[tvm.IRModule], object], mod: tvm.IRModule, seconds: float | None = None
) -> object:
    """`transform(mod)`. Raises TookTooLong if it does not end."""
    with limit_time(seconds or _seconds()):
        return transform(mod)


def _show(title: str, mod: tvm.IRModule) -> str:
    return f"\n\n{title}:\n{expect.script(mod)}"


def _describe_length(mod: tvm.IRModule) -> str:
    count = sum(len(bindings_of(s)) for f in relax_functions(mod).values() for s in scopes(f))
    return f"{count} binding{'' if count == 1 else 's'}"


def _judge(transform, program: Module, whose: str, costs: Look, read: str, results: list) -> None:
    limited = partial(in_time, transform)
    result = expect.apply(limited, program.mod, whose)
    expect.keeps_public_functions(result, program.mod, whose, read)
    if tvm_ffi.structural_equal(result, program.mod):
        return
    returned = [type(one["main"].ret_ty).__name__ for one in (result, program.mod)]
    expect.equal(*returned, f"{whose} changes the type that `main` returns.", read=read)
    results.append(result)
    try:
        vm = _compile(result)
    except Exception as error:
        what = f"What {whose} returns does not compile: {last_line(error)}"
        raise CheckFailed(what, expected="a module that compiles, as the one given does") from None
    exact = program.results or expect.call(_compile(program.mod), "main", program.arguments)
    text = program.mod.script()
    near = max(share for dtype, share in RELATIVE.items() if dtype in text)
    for _ in range(2):
        _check_results(expect.call(vm, "main", program.arguments), exact, near, whose, read)
    expect.runs_twice_the_same(partial(expect.apply, limited, whose=whose), result, whose)
    costs(program.mod, result)


# without fusion, each operator a kernel in the order of the text: TVM's own pipeline plans memory in functions with
# branches too, and crashes on some
_PIPELINE = tvm.transform.Sequential(
    [
        passes.LambdaLift(),
        passes.LegalizeOps(),
        *dataflow_lower_passes(QUICK),
        PlanStraightFunctions(),
        *finalize_passes(QUICK)[1:],  # the first is TVM's planner
    ]
)


def _compile(mod: tvm.IRModule) -> relax.VirtualMachine:
    return relax.VirtualMachine(compile_once(mod, relax_pipeline=_PIPELINE), tvm.cpu())


def _check_results(
    yours: list[np.ndarray], exact: list[np.ndarray], near: float, whose: str, read: str
) -> None:
    """As many results, of the same dtypes and shapes, and equal but for `near` of the largest number of each."""
    for number, (a, b) in enumerate(zip(yours, exact, strict=True), 1):
        what = f"{whose} changes the dtype or the shape of result {number}."
        expect.equal(f"{a.dtype} {a.shape}", f"{b.dtype} {b.shape}", what, read=read)
        numbers = b.astype("float64")
        largest = max(1.0, float(np.abs(numbers).max(initial=0)))
        if not (np.abs(a.astype("float64") - numbers) <= near * largest).all():
            raise CheckFailed(
                f"{whose} changes the numbers of result {number} of {len(exact)}.",
                expected=_show_numbers(b),
                yours=_show_numbers(a),
                why=SAME_NUMBERS,
                read=read,
            )


def _show_numbers(array: np.ndarray) -> str:
    """The numbers of a small array, and the first ones of a large one."""
    flat = array.astype("float64").ravel()
    shown = np.array2string(
        flat[:MOST_NUMBERS], precision=4, suppress_small=True, max_line_width=80
    )
    more = f", the first {MOST_NUMBERS} of {flat.size}" if flat.size > MOST_NUMBERS else ""
    return f"{shown}, of shape {array.shape}{more}"
